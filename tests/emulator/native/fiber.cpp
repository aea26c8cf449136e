// Fibers: a stack each, and a switch between two of them.
//
// On x86-64 the switch is nine instructions (tens of nanoseconds, against hundreds of ucontext,
// which makes a system call); elsewhere, and with EMU_UCONTEXT, it is ucontext.
#include <sys/mman.h>
#include <ucontext.h>

#include "machine.h"

#if !defined(__x86_64__)
#define EMU_UCONTEXT 1
#endif

#if !defined(EMU_UCONTEXT)
extern "C" void emu_switch_stack(void** save, void* to);
asm(R"(
.text
.globl emu_switch_stack
.type emu_switch_stack,@function
emu_switch_stack:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emu_switch_stack, .-emu_switch_stack
)");
#endif

namespace emu {

static void give_stack(Fiber& fiber) {
  if (fiber.stack) return;
  fiber.stack = static_cast<uint8_t*>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  mprotect(fiber.stack, 4096, PROT_NONE);  // an overflow faults instead of corrupting a neighbour
}

#if defined(EMU_UCONTEXT)

static ucontext_t* context_of(Fiber& fiber) {
  if (!fiber.context) fiber.context = new ucontext_t();
  return static_cast<ucontext_t*>(fiber.context);
}

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  give_stack(fiber);
  ucontext_t* context = context_of(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = fiber.stack;
  context->uc_stack.ss_size = stack_bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  fiber.state = State::ready;
}

void switch_to(Fiber& from, Fiber& to) {
  machine.switches++;
  swapcontext(context_of(from), context_of(to));
}

#else

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  give_stack(fiber);
  auto* top = reinterpret_cast<uintptr_t*>(fiber.stack + stack_bytes - 64);
  *--top = 0;  // a return address for `entry`, which never returns; aligns the stack as a call does
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int saved = 0; saved < 6; saved++) *--top = 0;
  fiber.context = top;
  fiber.state = State::ready;
}

void switch_to(Fiber& from, Fiber& to) {
  machine.switches++;
  emu_switch_stack(&from.context, to.context);
}

#endif

}  // namespace emu
