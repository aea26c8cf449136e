// Who runs next: threads of a threadgroup, barriers, collective operations, divergence.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "machine.h"

namespace emu {

Machine machine;

static Simdgroup& own_simdgroup() { return machine.simdgroups[machine.thread / EMU_LANES]; }
static unsigned own_bit() { return 1u << machine.thread % EMU_LANES; }

static bool same(const EmuSite& a, const EmuSite& b) {
  return a.line == b.line && !strcmp(a.what, b.what) && !strcmp(a.file, b.file);
}

static std::string name(const EmuSite& site) {
  return std::string(site.what) + " (" + site.file + ":" + std::to_string(site.line) + ")";
}

void pause() { switch_to(*machine.running, machine.host); }

static void run_thread() {
  machine.launch->run_thread(machine.launch, machine.thread);
  machine.running->state = State::finished;
  machine.alive--;
  own_simdgroup().alive &= ~own_bit();
  pause();
  abort();
}

void start_threadgroup(unsigned threads) {
  machine.threads = machine.alive = threads;
  machine.at_barrier = 0;
  machine.epoch[0] = machine.epoch[1] = 1;
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  machine.simdgroups.resize((threads + EMU_LANES - 1) / EMU_LANES);
  for (unsigned i = 0; i < machine.simdgroups.size(); i++) {
    Simdgroup& group = machine.simdgroups[i];
    unsigned lanes = std::min<unsigned>(EMU_LANES, threads - i * EMU_LANES);
    group.alive = lanes == EMU_LANES ? ~0u : (1u << lanes) - 1;
    group.set = group.arrived = group.barrier_flags = 0;
    group.epoch[0] = group.epoch[1] = 1;
  }
  for (unsigned i = 0; i < threads; i++) prepare_fiber(machine.fibers[i], run_thread);
}

// Everybody who is alive has arrived: do the operation and let them go on.
static void complete_exchange(unsigned index) {
  Simdgroup& group = machine.simdgroups[index];
  unsigned set = group.set;
  group.mask[set] = group.arrived;
  if (group.combine) {
    group.combine(&group.operands[set][0][0], group.arrived, &group.results[set][0][0]);
  }
  if (group.barrier_flags & EMU_DEVICE) group.epoch[device_space]++;
  if (group.barrier_flags & EMU_THREADGROUP) group.epoch[threadgroup_space]++;
  for (unsigned lane = 0; lane < EMU_LANES; lane++) {
    if (group.arrived >> lane & 1) machine.fibers[index * EMU_LANES + lane].state = State::ready;
  }
  group.arrived = group.barrier_flags = 0;
  group.set ^= 1;
}

static void complete_barrier() {
  machine.barriers++;
  if (machine.barrier_flags & EMU_DEVICE) machine.epoch[device_space]++;
  if (machine.barrier_flags & EMU_THREADGROUP) machine.epoch[threadgroup_space]++;
  for (Fiber& fiber : machine.fibers) {
    if (fiber.state == State::at_barrier) fiber.state = State::ready;
  }
  machine.at_barrier = 0;
}

[[noreturn]] static void report_stuck() {
  std::vector<std::pair<EmuSite, std::vector<unsigned>>> waiting;
  for (unsigned i = 0; i < machine.threads; i++) {
    const Fiber& fiber = machine.fibers[i];
    if (fiber.state == State::finished) continue;
    auto found = std::find_if(waiting.begin(), waiting.end(),
                              [&](auto& entry) { return same(entry.first, fiber.site); });
    if (found == waiting.end()) found = waiting.insert(found, {fiber.site, {}});
    found->second.push_back(i);
  }
  std::string text;
  for (auto& [site, threads] : waiting) {
    text += "; " + std::to_string(threads.size()) + " from thread " + std::to_string(threads[0]) +
            " on wait at " + name(site);
  }
  fail("divergence: threadgroup %u cannot go on, %u of its %u threads have not returned%s",
       machine.group, machine.alive, machine.threads, text.c_str());
}

// Runs what is ready in one simdgroup; whether anything was.
static bool run_simdgroup(unsigned index, const std::vector<unsigned>& lanes) {
  bool ran = false;
  for (unsigned lane : lanes) {
    unsigned thread = index * EMU_LANES + lane;
    if (thread >= machine.threads || machine.fibers[thread].state != State::ready) continue;
    machine.thread = thread;
    machine.running = &machine.fibers[thread];
    switch_to(machine.host, *machine.running);
    machine.running = nullptr;
    ran = true;
    Simdgroup& group = machine.simdgroups[index];
    if (group.arrived && group.arrived == group.alive) complete_exchange(index);
  }
  return ran;
}

void run_threadgroup() {
  std::vector<unsigned> groups(machine.simdgroups.size()), lanes(EMU_LANES);
  std::iota(groups.begin(), groups.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  int schedule = machine.launch->schedule;
  if (schedule == EMU_REVERSED) {
    std::reverse(groups.begin(), groups.end());
    std::reverse(lanes.begin(), lanes.end());
  }
  while (machine.alive) {
    if (schedule == EMU_RANDOM) {
      std::shuffle(groups.begin(), groups.end(), machine.random);
      std::shuffle(lanes.begin(), lanes.end(), machine.random);
    }
    bool ran = false;
    for (unsigned group : groups) {
      // In random order the simdgroups take turns; else one runs until it waits for the others.
      while (run_simdgroup(group, lanes) && (ran = true) && schedule != EMU_RANDOM) {
      }
    }
    if (ran || !machine.alive) continue;
    if (!machine.at_barrier || machine.at_barrier != machine.alive) report_stuck();
    if (machine.alive != machine.threads) {
      fail("%s reached by %u threads, %u have returned before: undefined in Metal",
           name(machine.barrier_site).c_str(), machine.alive, machine.threads - machine.alive);
    }
    complete_barrier();
  }
}

static EmuExchange exchange(const void* operand, unsigned size, EmuSite site, EmuCombine combine,
                            unsigned flags) {
  Simdgroup& group = own_simdgroup();
  unsigned lane = machine.thread % EMU_LANES, set = group.set;
  machine.collectives++;
  if (size > EMU_SLOT) fail("%s has an operand of %u bytes", name(site).c_str(), size);
  if (group.arrived && !same(group.site, site)) {
    fail("divergence: thread %u is at %s, other lanes of its simdgroup wait at %s", machine.thread,
         name(site).c_str(), name(group.site).c_str());
  }
  group.site = machine.running->site = site;
  group.combine = combine;
  group.barrier_flags = flags;
  memcpy(group.operands[set][lane], operand, size);
  group.arrived |= own_bit();
  if (group.arrived == group.alive) {
    complete_exchange(machine.thread / EMU_LANES);
  } else {
    machine.running->state = State::in_simdgroup;
    pause();
  }
  return {&group.operands[set][0][0], group.results[set][lane], group.mask[set]};
}

}  // namespace emu

using namespace emu;

extern "C" {

unsigned emu_thread_index() { return machine.thread; }

EmuExchange emu_exchange(const void* operand, unsigned size, EmuSite site, EmuCombine combine) {
  return exchange(operand, size, site, combine, 0);
}

void emu_simdgroup_barrier(unsigned flags, EmuSite site) {
  exchange(&flags, sizeof flags, site, nullptr, flags);
}

void emu_threadgroup_barrier(unsigned flags, EmuSite site) {
  if (machine.at_barrier && !same(machine.barrier_site, site)) {
    fail("divergence: thread %u is at %s, others wait at %s", machine.thread, name(site).c_str(),
         name(machine.barrier_site).c_str());
  }
  machine.barrier_site = machine.running->site = site;
  machine.barrier_flags = flags;
  machine.at_barrier++;
  if (machine.at_barrier == machine.threads) {
    complete_barrier();
  } else {
    machine.running->state = State::at_barrier;
    pause();
  }
}

void emu_inactive_lane(int lane, EmuSite site) {
  fail("thread %u reads lane %d in %s, which takes no part: undefined in Metal", machine.thread,
       lane, name(site).c_str());
}
}
