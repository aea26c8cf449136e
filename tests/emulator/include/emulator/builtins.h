// The compiler's own names behind Metal's library, which MLX's bf16_math.h calls.
#pragma once

#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 2

#define EMU_BUILTIN(f, value) \
  METAL_FUNC float __metal_##f(float x, int) { return metal::precise::f(x); }
#define EMU_BUILTIN_OF_TWO(f, value) \
  METAL_FUNC float __metal_##f(float x, float y, int) { return metal::precise::f(x, y); }
EMU_FUNCTIONS(EMU_BUILTIN)
EMU_FUNCTIONS_OF_TWO(EMU_BUILTIN_OF_TWO)
METAL_FUNC float __metal_nextafter(float x, float y) { return metal::nextafter(x, y); }
METAL_FUNC float __metal_fma(float a, float b, float c) { return metal::fma(a, b, c); }
METAL_FUNC float __metal_fmax3(float a, float b, float c, int) {
  return metal::fmax(a, metal::fmax(b, c));
}
METAL_FUNC float __metal_fmin3(float a, float b, float c, int) {
  return metal::fmin(a, metal::fmin(b, c));
}
METAL_FUNC float __metal_fmedian3(float a, float b, float c, int) {
  return metal::fmax(metal::fmin(a, b), metal::fmin(metal::fmax(a, b), c));
}
METAL_FUNC float __metal_ldexp(float x, int e, int) { return metal::ldexp(x, e); }
METAL_FUNC float __metal_frexp(float x, int* e) { return __builtin_frexpf(x, e); }
METAL_FUNC ushort __metal_get_simdgroup_size(ushort) { return EMU_LANES; }
METAL_FUNC ushort __metal_get_thread_index_in_simdgroup(ushort) {
  return (ushort)metal::lanes::own();
}

#define __metal_simd_sum(x) metal::simd_sum(x)
#define __metal_simd_product(x) metal::simd_product(x)
#define __metal_simd_min(x) metal::simd_min(x)
#define __metal_simd_max(x) metal::simd_max(x)
template <class T> T __metal_simd_xor(T);  // of floats in MLX: declared only, nobody can use it
#define __metal_simd_prefix_inclusive_sum(x) metal::simd_prefix_inclusive_sum(x)
#define __metal_simd_prefix_exclusive_sum(x) metal::simd_prefix_exclusive_sum(x)
#define __metal_simd_prefix_inclusive_product(x) metal::simd_prefix_inclusive_product(x)
#define __metal_simd_prefix_exclusive_product(x) metal::simd_prefix_exclusive_product(x)
#define __metal_simd_broadcast(x, n) metal::simd_broadcast(x, n)
#define __metal_simd_shuffle(x, n) metal::simd_shuffle(x, n)
#define __metal_simd_shuffle_xor(x, n) metal::simd_shuffle_xor(x, n)
#define __metal_simd_shuffle_up(x, n) metal::simd_shuffle_up(x, n)
#define __metal_simd_shuffle_down(x, n) metal::simd_shuffle_down(x, n)
#define __metal_simd_shuffle_rotate_up(x, n) metal::simd_shuffle_rotate_up(x, n)
#define __metal_simd_shuffle_rotate_down(x, n) metal::simd_shuffle_rotate_down(x, n)
#define __metal_simd_shuffle_and_fill_up(x, fill, n, width) \
  metal::simd_shuffle_and_fill_up(x, fill, n)
#define __metal_simd_shuffle_and_fill_down(x, fill, n, width) \
  metal::simd_shuffle_and_fill_down(x, fill, n)
