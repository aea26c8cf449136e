// Where the compiler's instrumentation ends up: loads, stores and undefined arithmetic.
//
// Checked kernels are compiled with -fsanitize=thread and parts of -fsanitize=undefined, and linked
// against these functions instead of the sanitizers' own libraries, which know nothing of barriers,
// flags and threadgroup memory.
#include <cstring>

#include "machine.h"

using emu::machine;

static void check(const void* address, size_t size, bool writes, const void* caller) {
  if (machine.running && machine.launch->checked) {
    emu::check_access(address, size, writes, false, caller);
  }
}

static void check_range(const void* address, size_t size, bool writes, const void* caller) {
  auto* bytes = static_cast<const char*>(address);
  for (size_t i = 0; i < size; i++) check(bytes + i, 1, writes, caller);
}

struct Check;
static void undefined(const Check& check, const char* meaning);

#define CALLER __builtin_return_address(0)
#define ACCESS(prefix, size)                                                                \
  void prefix##read##size(void* p) { check(p, size, false, CALLER); }                       \
  void prefix##write##size(void* p) { check(p, size, true, CALLER); }                       \
  void prefix##read_write##size(void* p) {                                                  \
    check(p, size, false, CALLER);                                                          \
    check(p, size, true, CALLER);                                                           \
  }
#define ACCESSES(size) \
  ACCESS(__tsan_, size) ACCESS(__tsan_unaligned_, size) ACCESS(__tsan_volatile_, size)

extern "C" {

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void* __tsan_memcpy(void* to, const void* from, size_t size) {
  check_range(from, size, false, CALLER);
  check_range(to, size, true, CALLER);
  return memcpy(to, from, size);
}

void* __tsan_memmove(void* to, const void* from, size_t size) {
  check_range(from, size, false, CALLER);
  check_range(to, size, true, CALLER);
  return memmove(to, from, size);
}

void* __tsan_memset(void* to, int value, size_t size) {
  check_range(to, size, true, CALLER);
  return memset(to, value, size);
}

// The place that the compiler notes for each check; more follows, which differs between checks.
struct Check {
  const char* file;
  uint32_t line, column;
};
#define UNDEFINED(name, meaning) \
  void __ubsan_handle_##name(const Check* check) { undefined(*check, meaning); }
UNDEFINED(out_of_bounds, "index outside of an array")
UNDEFINED(shift_out_of_bounds, "shift by a negative amount, or by the width or more")
UNDEFINED(divrem_overflow, "division by zero, or signed overflow in a division")
UNDEFINED(add_overflow, "signed integer overflow")
UNDEFINED(sub_overflow, "signed integer overflow")
UNDEFINED(mul_overflow, "signed integer overflow")
UNDEFINED(negate_overflow, "signed integer overflow")
UNDEFINED(float_cast_overflow, "a float that does not fit the integer it is converted to")

// The compiler calls these for conversions to bfloat; older libgcc lack them. Nearest, ties to even.
__bf16 __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bool nan = (bits & 0x7fffffff) > 0x7f800000;
  uint16_t top = nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  __bf16 result;
  memcpy(&result, &top, sizeof result);
  return result;
}
__bf16 __truncdfbf2(double value) { return __truncsfbf2(static_cast<float>(value)); }
}

static void undefined(const Check& check, const char* meaning) {
  const char* slash = strrchr(check.file, '/');
  emu::fail("%s (thread %u of threadgroup %u) at %s:%u", meaning, machine.thread, machine.group,
            slash ? slash + 1 : check.file, check.line);
}
