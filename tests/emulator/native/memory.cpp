// What a kernel may touch, and when: bounds, initialisation, and races by Metal's rules.
//
// Two accesses to a byte are ordered only by program order, by a threadgroup barrier whose flags
// name the space, or by such a simdgroup barrier within one simdgroup. Threadgroups are never
// ordered. Accesses that are not ordered conflict if one writes and not both are atomic. No race has
// to happen for this: every pair is judged, so one run finds it whatever the schedule.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "machine.h"

namespace emu {

constexpr int nobody = -1, several = -2;
constexpr size_t threadgroup_limit = 32 * 1024;
constexpr size_t gap = 64;  // between two threadgroup variables, so that an overrun hits nothing
constexpr unsigned char poison = 0xFF;  // NaN in every float type, -1 as an integer

// The last accesses of one kind; concurrent ones are kept together as `several`.
struct Access {
  int group = nobody, simdgroup = several, thread = several;
  uint32_t epoch = 0, simdgroup_epoch = 0;
  bool atomic = false;
};

struct Byte {
  Access write, read;
};

struct Region {
  uintptr_t begin, end;
  Space space;
  int access;
  std::string name;
  std::vector<Byte> bytes;  // empty where there is nothing to watch: inputs, and unchecked runs
  std::vector<uint8_t> written;
};

struct Variable {
  unsigned id;
  void* address;
};

static std::vector<std::unique_ptr<Region>> regions;
static size_t buffer_regions = 0;  // the first ones; those of threadgroup memory follow
static std::vector<Variable> variables;
static unsigned char* arena = nullptr;
static size_t arena_used = 0, threadgroup_used = 0;

static Region& add_region(void* begin, size_t size, Space space, int access, const char* name) {
  auto address = reinterpret_cast<uintptr_t>(begin);
  regions.push_back(
      std::make_unique<Region>(Region{address, address + size, space, access, name, {}, {}}));
  Region& region = *regions.back();
  if (machine.launch->checked && access != EMU_INPUT) {
    region.bytes.resize(size);
    region.written.assign(size, space == device_space && machine.launch->initialised);
  }
  return region;
}

void add_buffers() {
  const EmuLaunch& launch = *machine.launch;
  regions.clear();
  for (int i = 0; i < launch.buffer_count; i++) {
    add_region(launch.buffers[i], launch.sizes[i], device_space, launch.access[i], launch.names[i]);
  }
  buffer_regions = regions.size();
}

void forget_threadgroup_memory() {
  regions.resize(buffer_regions);
  variables.clear();
  arena_used = threadgroup_used = 0;
}

static Region* find_region(uintptr_t address) {
  for (auto& region : regions) {
    if (address >= region->begin && address < region->end) return region.get();
  }
  return nullptr;
}

// The region that an address outside of all was probably meant for.
static const Region* nearest_region(uintptr_t address) {
  const Region* best = nullptr;
  uintptr_t distance = 1 << 20;
  for (auto& region : regions) {
    uintptr_t away = address < region->begin ? region->begin - address : address - region->end;
    if (away < distance) distance = away, best = region.get();
  }
  return best;
}

static bool is_private_or_constant(uintptr_t address, bool writes) {
  auto stack = reinterpret_cast<uintptr_t>(machine.running->stack);
  if (address >= stack && address < stack + stack_bytes) return true;
  auto begin = reinterpret_cast<uintptr_t>(machine.launch->image_begin);
  auto end = reinterpret_cast<uintptr_t>(machine.launch->image_end);
  return !writes && address >= begin && address < end;
}

static bool ordered(const Access& before, const Access& now) {
  if (before.group == nobody) return true;
  if (before.group != now.group) return false;
  return before.thread == now.thread || before.epoch < now.epoch ||
         (before.simdgroup == now.simdgroup && before.simdgroup_epoch < now.simdgroup_epoch);
}

static void remember(Access& last, const Access& now) {
  if (ordered(last, now)) {
    last = now;
    return;
  }
  if (last.group != now.group) last.group = several;
  if (last.simdgroup != now.simdgroup) last.simdgroup = several;
  last.thread = several;
  last.epoch = now.epoch;
  last.simdgroup_epoch = now.simdgroup_epoch;
  last.atomic = last.atomic && now.atomic;
}

static std::string who(int index, const char* one, const char* many) {
  return index == several ? many : one + std::to_string(index);
}

static void check_race(const Access& before, const char* earlier, const Access& now, bool writes,
                       const Region& region, size_t offset, const void* caller) {
  if (ordered(before, now) || (before.atomic && now.atomic)) return;
  fail_at(caller,
          "data race at byte %zu of '%s': %s by thread %d of threadgroup %d is not ordered after a "
          "%s by %s of %s",
          offset, region.name.c_str(), writes ? "write" : "read", now.thread, now.group, earlier,
          who(before.thread, "thread ", "several threads").c_str(),
          who(before.group, "threadgroup ", "several threadgroups").c_str());
}

static void check_region(Region& region, size_t offset, size_t size, bool writes, bool atomic,
                         const void* caller) {
  const Simdgroup& simdgroup = machine.simdgroups[machine.thread / EMU_LANES];
  Access now;
  now.group = static_cast<int>(machine.group);
  now.simdgroup = static_cast<int>(machine.thread / EMU_LANES);
  now.thread = static_cast<int>(machine.thread);
  now.epoch = machine.epoch[region.space];
  now.simdgroup_epoch = simdgroup.epoch[region.space];
  now.atomic = atomic;
  for (size_t i = offset; i < offset + size; i++) {
    Byte& byte = region.bytes[i];
    if (!writes && !region.written[i]) {
      fail_at(caller, "uninitialised read: byte %zu of '%s' was never written (thread %u of threadgroup %u)",
              i, region.name.c_str(), machine.thread, machine.group);
    }
    check_race(byte.write, "write", now, writes, region, i, caller);
    if (writes) {
      check_race(byte.read, "read", now, writes, region, i, caller);
      remember(byte.write, now);
      region.written[i] = true;
    } else {
      remember(byte.read, now);
    }
  }
}

void check_access(const void* pointer, size_t size, bool writes, bool atomic, const void* caller) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  machine.accesses++;
  if (is_private_or_constant(address, writes)) return;
  const char* verb = writes ? "write" : "read";
  Region* region = find_region(address);
  if (!region || address + size > region->end) {
    const Region* meant = region ? region : nearest_region(address);
    long offset = meant ? static_cast<long>(address - meant->begin) : 0;
    fail_at(caller, "out of bounds: %s of %zu bytes at byte %ld of %s (thread %u of threadgroup %u)",
            verb, size, offset,
            meant ? ("'" + meant->name + "', which has " +
                     std::to_string(meant->end - meant->begin)).c_str()
                  : "no buffer",
            machine.thread, machine.group);
  }
  size_t offset = address - region->begin;
  if ((size & (size - 1)) == 0 && offset % std::min<size_t>(size, 16)) {
    fail_at(caller, "misaligned: %s of %zu bytes at byte %zu of '%s' (thread %u of threadgroup %u)",
            verb, size, offset, region->name.c_str(), machine.thread, machine.group);
  }
  if (writes && region->access == EMU_INPUT) {
    fail_at(caller, "write to the input '%s' (thread %u of threadgroup %u)", region->name.c_str(),
            machine.thread, machine.group);
  }
  if (!region->bytes.empty()) check_region(*region, offset, size, writes, atomic, caller);
}

void check_outputs_written() {
  for (auto& region : regions) {
    if (region->access != EMU_OUTPUT || region->bytes.empty()) continue;
    auto hole = std::find(region->written.begin(), region->written.end(), 0);
    if (hole != region->written.end()) {
      fail("byte %td of the output '%s' was never written", hole - region->written.begin(),
           region->name.c_str());
    }
  }
}

}  // namespace emu

using namespace emu;

extern "C" {

void* emu_threadgroup_memory(unsigned id, size_t size, size_t align, EmuSite site) {
  for (const Variable& variable : variables) {
    if (variable.id == id) return variable.address;
  }
  threadgroup_used += (size + 15) & ~size_t{15};
  machine.threadgroup_bytes = std::max(machine.threadgroup_bytes, threadgroup_used);
  if (threadgroup_used > threadgroup_limit) {
    fail("threadgroup memory: '%s' (%s:%d) makes it %zu bytes, %zu are allowed", site.what,
         site.file, site.line, threadgroup_used, threadgroup_limit);
  }
  if (!arena) {
    arena = static_cast<unsigned char*>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  align = std::max<size_t>(align, 16);
  arena_used = (arena_used + gap + align - 1) & ~(align - 1);
  void* address = arena + arena_used;
  arena_used += size;
  memset(address, poison, size);
  add_region(address, size, threadgroup_space, EMU_OUTPUT_WITH_GAPS, site.what);
  variables.push_back({id, address});
  return address;
}

void emu_atomic(const void* address, unsigned size, int reads, int writes, const void* caller) {
  if (machine.launch->checked) {
    if (reads) check_access(address, size, false, true, caller);
    if (writes) check_access(address, size, true, true, caller);
  }
  if (machine.launch->schedule == EMU_RANDOM) pause();
}
}
