// One dispatch from beginning to end, and everything that can end it early.
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "machine.h"

namespace emu {

static sigjmp_buf out;
static long owner = 0;
constexpr int caught[] = {SIGSEGV, SIGBUS, SIGPROF, SIGFPE};
constexpr int caught_count = sizeof caught / sizeof *caught;

static void write_fault(const void* address, const char* format, va_list arguments) {
  machine.launch->fault_address = address;
  vsnprintf(machine.launch->fault, sizeof machine.launch->fault, format, arguments);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_fault(nullptr, format, arguments);
  va_end(arguments);
  siglongjmp(out, 1);
}

void fail_at(const void* address, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_fault(address, format, arguments);
  va_end(arguments);
  siglongjmp(out, 1);
}

static void on_signal(int number, siginfo_t* info, void*) {
  if (syscall(SYS_gettid) != owner) {  // timers belong to the process, fibers to one thread of it
    syscall(SYS_tgkill, getpid(), owner, number);
    return;
  }
  unsigned thread = machine.thread, group = machine.group;
  if (number == SIGPROF) {
    fail("timeout: thread %u of threadgroup %u still runs (an endless loop?)", thread, group);
  }
  if (number == SIGSEGV || number == SIGBUS) {
    fail("out of bounds: access to %p (thread %u of threadgroup %u)", info->si_addr, thread, group);
  }
  fail("division by zero (thread %u of threadgroup %u)", thread, group);
}

static void run_all() {
  EmuLaunch& launch = *machine.launch;
  unsigned count = 1;
  for (int k = 0; k < 3; k++) {
    launch.full_size[k] = std::min(launch.threadgroup[k], launch.grid[k]);
    launch.groups[k] = (launch.grid[k] + launch.full_size[k] - 1) / launch.full_size[k];
    count *= launch.groups[k];
  }
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (launch.schedule == EMU_REVERSED) std::reverse(order.begin(), order.end());
  if (launch.schedule == EMU_RANDOM) std::shuffle(order.begin(), order.end(), machine.random);
  for (unsigned group : order) {
    machine.group = group;
    launch.position[0] = group % launch.groups[0];
    launch.position[1] = group / launch.groups[0] % launch.groups[1];
    launch.position[2] = group / launch.groups[0] / launch.groups[1];
    for (int k = 0; k < 3; k++) {  // those at the edge of the grid are smaller
      unsigned left = launch.grid[k] - launch.position[k] * launch.full_size[k];
      launch.size[k] = std::min(launch.full_size[k], left);
    }
    forget_threadgroup_memory();
    start_threadgroup(launch.size[0] * launch.size[1] * launch.size[2]);
    run_threadgroup();
  }
  if (launch.checked && !launch.initialised) check_outputs_written();
}

// Signal handlers, their stack and the timer, for the time of one launch.
class Watch {
 public:
  explicit Watch(unsigned seconds) {
    static unsigned char stack[65536];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, &stack_before_);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < caught_count; i++) sigaction(caught[i], &action, &before_[i]);
    set_timer(seconds);
  }
  ~Watch() {
    set_timer(0);
    for (int i = 0; i < caught_count; i++) sigaction(caught[i], &before_[i], nullptr);
    sigaltstack(&stack_before_, nullptr);
  }

 private:
  static void set_timer(unsigned seconds) {
    struct itimerval timer {};
    timer.it_value.tv_sec = seconds;
    setitimer(ITIMER_PROF, &timer, nullptr);
  }
  stack_t stack_before_{};
  struct sigaction before_[caught_count];
};

}  // namespace emu

using namespace emu;

extern "C" int emu_run(EmuLaunch* launch) {
  machine.launch = launch;
  machine.switches = machine.accesses = machine.collectives = machine.barriers = 0;
  machine.threadgroup_bytes = 0;
  machine.random.seed(launch->seed);
  owner = syscall(SYS_gettid);
  add_buffers();
  Watch watch(launch->timeout_seconds);
  if (!sigsetjmp(out, 1)) run_all();
  machine.running = nullptr;
  const uint64_t counters[5] = {machine.switches, machine.accesses, machine.collectives,
                                machine.barriers, machine.threadgroup_bytes};
  std::copy(counters, counters + 5, launch->counters);
  return launch->fault[0] != 0;
}
