// The words of Metal that C++ does not have: address spaces, scalar and vector types, constants.
#pragma once

#define __METAL__ 1
#define __METAL_VERSION__ 310  // macOS 14, the oldest that MLX runs on
#define METAL_FUNC inline __attribute__((always_inline))

#if EMU_TYPES
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant
#define threadgroup
#endif
#define thread
#define kernel

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

#define EMU_VECTORS(T)                              \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
#define EMU_ELEMENT_TYPES(X) \
  X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(bfloat) X(float)
EMU_ELEMENT_TYPES(EMU_VECTORS)
// Comparisons of vectors give -1 and 0, as in OpenCL; Metal has bool vectors.
typedef int bool2 __attribute__((ext_vector_type(2)));
typedef int bool3 __attribute__((ext_vector_type(3)));
typedef int bool4 __attribute__((ext_vector_type(4)));

inline constexpr half operator""h(long double x) { return (half)x; }
inline constexpr half operator""h(unsigned long long x) { return (half)x; }
inline constexpr bfloat operator""bf(long double x) { return (bfloat)(float)x; }

#undef INFINITY
#undef NAN
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX ((half)65504.0f)
#define INT_MAX __INT_MAX__
#define UINT_MAX 0xFFFFFFFFu
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_SQRTPI_F 1.12837916709551257390f
