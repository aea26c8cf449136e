// Collective operations of a simdgroup: sums, scans, shuffles and votes of 32 lanes.
//
// Only lanes that have not returned take part. All of them must come to the same line: Metal does
// not say what happens in divergent flow, so the emulator refuses it.
#pragma once

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
  uint yes, active;
};
__attribute__((noinline)) inline EMU_UNCHECKED Votes votes(bool vote, EmuSite site) {
  EmuExchange all = emu_exchange(&vote, sizeof vote, site, nullptr);
  uint yes = 0;
  for (int i = 0; i < EMU_LANES; i++) {
    if ((all.mask >> i & 1) && all.operands[EMU_SLOT * i]) yes |= 1u << i;
  }
  return {yes, all.mask};
}
}  // namespace lanes

#define EMU_REDUCTION(name, Op)                                      \
  template <class T> inline T name(T value, EMU_SITE(#name)) {       \
    return lanes::combined<T>(value, site, &lanes::reduce<T, lanes::Op>); \
  }
EMU_REDUCTION(simd_sum, Sum)
EMU_REDUCTION(simd_product, Product)
EMU_REDUCTION(simd_min, Min)
EMU_REDUCTION(simd_max, Max)
EMU_REDUCTION(simd_and, And)
EMU_REDUCTION(simd_or, Or)
EMU_REDUCTION(simd_xor, Xor)

#define EMU_SCAN(name, Op, Inclusive)                                \
  template <class T> inline T name(T value, EMU_SITE(#name)) {       \
    return lanes::combined<T>(value, site, &lanes::scan<T, lanes::Op, Inclusive>); \
  }
EMU_SCAN(simd_prefix_inclusive_sum, Sum, true)
EMU_SCAN(simd_prefix_exclusive_sum, Sum, false)
EMU_SCAN(simd_prefix_inclusive_product, Product, true)
EMU_SCAN(simd_prefix_exclusive_product, Product, false)

#define EMU_SHUFFLE(name, from)                                      \
  template <class T> inline T name(T value, ushort n, EMU_SITE(#name)) { \
    return lanes::shuffled<T>(value, from, site);                    \
  }
EMU_SHUFFLE(simd_shuffle, n % EMU_LANES)
EMU_SHUFFLE(simd_broadcast, n % EMU_LANES)
EMU_SHUFFLE(simd_shuffle_xor, lanes::own() ^ n)
EMU_SHUFFLE(simd_shuffle_up, lanes::own() - n)
EMU_SHUFFLE(simd_shuffle_down, lanes::own() + n)
EMU_SHUFFLE(simd_shuffle_rotate_up, (lanes::own() - n) & 31)
EMU_SHUFFLE(simd_shuffle_rotate_down, (lanes::own() + n) & 31)
EMU_SHUFFLE(quad_shuffle, (lanes::own() & ~3) | (n & 3))
EMU_SHUFFLE(quad_broadcast, (lanes::own() & ~3) | (n & 3))
EMU_SHUFFLE(quad_shuffle_xor, (lanes::own() & ~3) | ((lanes::own() ^ n) & 3))

#define EMU_FILL(name, shift, edge)                                  \
  template <class T> inline T name(T value, T fill, ushort n, EMU_SITE(#name)) { \
    T filled = lanes::shuffled<T>(fill, (lanes::own() shift n) & 31, site); \
    T moved = lanes::shuffled<T>(value, lanes::own() shift n, site); \
    return edge ? filled : moved;                                    \
  }
EMU_FILL(simd_shuffle_and_fill_up, -, lanes::own() < n)
EMU_FILL(simd_shuffle_and_fill_down, +, lanes::own() + n > 31)

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit constexpr simd_vote(vote_t b = 0) : bits(b) {}
  explicit constexpr operator vote_t() const { return bits; }
  bool all() const { return (uint)bits == ~0u; }
  bool any() const { return bits != 0; }
};
inline simd_vote simd_ballot(bool vote, EMU_SITE("simd_ballot")) {
  return simd_vote(lanes::votes(vote, site).yes);
}
inline simd_vote simd_active_threads_mask(EMU_SITE("simd_active_threads_mask")) {
  return simd_vote(lanes::votes(true, site).active);
}
inline bool simd_all(bool vote, EMU_SITE("simd_all")) {
  lanes::Votes votes = lanes::votes(vote, site);
  return votes.yes == votes.active;
}
inline bool simd_any(bool vote, EMU_SITE("simd_any")) { return lanes::votes(vote, site).yes != 0; }
inline bool simd_is_first(EMU_SITE("simd_is_first")) {
  return __builtin_ctz(lanes::votes(true, site).active) == lanes::own();
}
template <class T> inline T simd_broadcast_first(T value, EMU_SITE("simd_broadcast_first")) {
  return lanes::shuffled<T>(value, __builtin_ctz(lanes::votes(true, site).active), site);
}
}  // namespace metal
