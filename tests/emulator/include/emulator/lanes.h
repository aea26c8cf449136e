// What the lanes of a simdgroup, or of a warp, do together: under the collective operations of both.
#pragma once

// The emulator's own functions are not instrumented: what they touch is not the kernel's memory.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))
// A default argument in front of which the caller's line is noted.
#define EMU_SITE(name) \
  EmuSite site = EmuSite { name, __builtin_FILE(), __builtin_LINE() }

namespace metal {
namespace lanes {
template <class T> inline EMU_UNCHECKED T load(const unsigned char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class T> inline EMU_UNCHECKED void store(unsigned char* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}
inline int own() { return (int)(emu_thread_index() % EMU_LANES); }

struct Sum {
  template <class T> static T neutral() { return (T)0; }
  template <class T> static T of(T a, T b) { return (T)(a + b); }
};
struct Product {
  template <class T> static T neutral() { return (T)1; }
  template <class T> static T of(T a, T b) { return (T)(a * b); }
};
struct Min {
  template <class T> static T of(T a, T b) { return b < a || a != a ? b : a; }
};
struct Max {
  template <class T> static T of(T a, T b) { return a < b || a != a ? b : a; }
};
struct And {
  template <class T> static T of(T a, T b) { return (T)(a & b); }
};
struct Or {
  template <class T> static T of(T a, T b) { return (T)(a | b); }
};
struct Xor {
  template <class T> static T of(T a, T b) { return (T)(a ^ b); }
};

// Pairs, pairs of pairs, ...: the order of a butterfly. A GPU's order is not specified.
template <class T, class Op>
EMU_UNCHECKED void reduce(const unsigned char* operands, unsigned mask, unsigned char* results) {
  T values[EMU_LANES];
  bool present[EMU_LANES];
  for (int i = 0; i < EMU_LANES; i++) {
    present[i] = mask >> i & 1;
    if (present[i]) values[i] = load<T>(operands + EMU_SLOT * i);
  }
  for (int d = 1; d < EMU_LANES; d *= 2) {
    for (int i = 0; i < EMU_LANES; i += 2 * d) {
      if (!present[i + d]) continue;
      values[i] = present[i] ? Op::template of<T>(values[i], values[i + d]) : values[i + d];
      present[i] = true;
    }
  }
  for (int i = 0; i < EMU_LANES; i++) store<T>(results + EMU_SLOT * i, values[0]);
}
template <class T, class Op, bool Inclusive>
EMU_UNCHECKED void scan(const unsigned char* operands, unsigned mask, unsigned char* results) {
  T total = Op::template neutral<T>();
  for (int i = 0; i < EMU_LANES; i++) {
    if (!(mask >> i & 1)) continue;
    T next = Op::template of<T>(total, load<T>(operands + EMU_SLOT * i));
    store<T>(results + EMU_SLOT * i, Inclusive ? next : total);
    total = next;
  }
}

// noinline: a kernel's lines around a collective must not be taken apart and reordered.
template <class T>
__attribute__((noinline)) EMU_UNCHECKED T combined(T value, EmuSite site, EmuCombine how) {
  return load<T>(emu_exchange(&value, sizeof value, site, how).result);
}
// Lane `from`'s value; outside of the simdgroup the own one.
template <class T>
__attribute__((noinline)) EMU_UNCHECKED T shuffled(T value, int from, EmuSite site) {
  EmuExchange all = emu_exchange(&value, sizeof value, site, nullptr);
  if (from < 0 || from >= EMU_LANES) return value;
  if (!(all.mask >> from & 1)) emu_inactive_lane(from, site);
  return load<T>(all.operands + EMU_SLOT * from);
}
struct Votes {
  unsigned yes, active;
};
__attribute__((noinline)) inline EMU_UNCHECKED Votes votes(bool vote, EmuSite site) {
  EmuExchange all = emu_exchange(&vote, sizeof vote, site, nullptr);
  unsigned yes = 0;
  for (int i = 0; i < EMU_LANES; i++) {
    if ((all.mask >> i & 1) && all.operands[EMU_SLOT * i]) yes |= 1u << i;
  }
  return {yes, all.mask};
}
}  // namespace lanes
}  // namespace metal
