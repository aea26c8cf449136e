// Collective operations of a simdgroup: sums, scans, shuffles and votes of 32 lanes.
//
// Only lanes that have not returned take part. All of them must come to the same line: Metal does
// not say what happens in divergent flow, so the emulator refuses it.
#pragma once
#include "emulator/lanes.h"

namespace metal {

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
