// State of the emulated GPU, shared by the files of this folder. One launch runs at a time.
//
// Every Metal thread of the running threadgroup is a fiber on one OS thread. A fiber runs until it
// waits at a barrier or a collective operation, so these are real meeting points.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "abi.h"

namespace emu {

enum class State : uint8_t { ready, in_simdgroup, at_barrier, finished };

struct Fiber {
  void* context = nullptr;  // where it goes on: a stack pointer, or a ucontext_t
  uint8_t* stack = nullptr;
  State state = State::finished;
  EmuSite site{};  // what it waits for
};

struct Simdgroup {
  // Two sets: a lane may reach the next operation before the others have read this one's result.
  alignas(64) unsigned char operands[2][EMU_LANES][EMU_SLOT];
  unsigned char results[2][EMU_LANES][EMU_SLOT];
  unsigned mask[2];
  unsigned set, arrived, alive;
  EmuSite site;
  EmuCombine combine;
  unsigned barrier_flags;
  uint32_t epoch[2];  // simdgroup barriers passed, by space
};

// Spaces of memory; a barrier orders those that its flags name.
enum Space { device_space = 0, threadgroup_space = 1 };

struct Machine {
  EmuLaunch* launch = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  Fiber host;                // the scheduler
  Fiber* running = nullptr;  // null outside of fibers
  unsigned thread = 0;       // index of the running fiber
  unsigned threads = 0, alive = 0, group = 0;
  unsigned at_barrier = 0;
  EmuSite barrier_site{};
  unsigned barrier_flags = 0;
  uint32_t epoch[2] = {1, 1};  // threadgroup barriers passed, by space
  uint64_t switches = 0, accesses = 0, collectives = 0, barriers = 0;
  size_t threadgroup_bytes = 0;
  std::mt19937 random;
};
extern Machine machine;

// Ends the launch with a message; returns to emu_run.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_at(const void* address, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// fiber.cpp
constexpr size_t stack_bytes = 256 * 1024;
void prepare_fiber(Fiber& fiber, void (*entry)());
void switch_to(Fiber& from, Fiber& to);

// schedule.cpp
void start_threadgroup(unsigned threads);
void run_threadgroup();
void pause();  // lets other fibers run; this one stays ready

// memory.cpp
void add_buffers();
void forget_threadgroup_memory();
void check_access(const void* address, size_t size, bool writes, bool atomic, const void* caller);
void check_outputs_written();

}  // namespace emu
