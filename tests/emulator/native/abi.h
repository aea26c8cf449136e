// What a kernel compiled for the CPU, the runtime that runs it and Python (launch.py) agree on.
#pragma once
#include <stddef.h>
#include <stdint.h>

// A place in the kernel's source, for messages.
struct EmuSite {
  const char* what;
  const char* file;
  int line;
};

// One dispatch. launch.py has the same fields in the same order.
struct EmuLaunch {
  // Set by the kernel's own library.
  void (*run_thread)(struct EmuLaunch*, unsigned index);
  const char* image_begin;
  const char* image_end;
  // Set by Python. `access` of a buffer is one of EmuAccess.
  unsigned grid[3], threadgroup[3];
  void** buffers;
  size_t* sizes;
  uint8_t* access;
  const char** names;
  int buffer_count;
  int checked, schedule, initialised;
  unsigned seed, timeout_seconds;
  // The threadgroup that runs: its position, its size, the size of a full one, how many there are.
  unsigned position[3], size[3], full_size[3], groups[3];
  // Results: switches, memory accesses, simdgroup operations, barriers, bytes of threadgroup memory.
  uint64_t counters[5];
  const void* fault_address;  // of the instruction, where the message does not name a line
  char fault[1024];
};

enum EmuAccess { EMU_INPUT = 0, EMU_OUTPUT = 1, EMU_OUTPUT_WITH_GAPS = 2 };
enum EmuSchedule { EMU_IN_ORDER = 0, EMU_REVERSED = 1, EMU_RANDOM = 2 };
enum EmuFlags { EMU_DEVICE = 1, EMU_THREADGROUP = 2 };  // of barriers: metal::mem_flags

// What all lanes of a simdgroup brought to a collective operation.
struct EmuExchange {
  const unsigned char* operands;  // of lane l at EMU_SLOT * l
  const unsigned char* result;    // of this lane, if there was a `combine`
  unsigned mask;                  // the lanes that took part
};
enum { EMU_SLOT = 64, EMU_LANES = 32 };
typedef void (*EmuCombine)(const unsigned char* operands, unsigned mask, unsigned char* results);

#ifdef __cplusplus
extern "C" {
#endif
unsigned emu_thread_index();
void* emu_threadgroup_memory(unsigned id, size_t size, size_t align, struct EmuSite site);
void emu_threadgroup_barrier(unsigned flags, struct EmuSite site);
void emu_simdgroup_barrier(unsigned flags, struct EmuSite site);
// Waits until every lane that has not returned is here; `combine` runs once, before they go on.
struct EmuExchange emu_exchange(const void* operand, unsigned size, struct EmuSite site,
                                EmuCombine combine);
void emu_inactive_lane(int lane, struct EmuSite site);
// Before an atomic operation: the check of memory, and a chance for other threads to run.
void emu_atomic(const void* address, unsigned size, int reads, int writes, const void* caller);
int emu_run(struct EmuLaunch*);
#ifdef __cplusplus
}
#endif
