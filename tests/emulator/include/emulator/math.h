// Metal's <metal_math> by the C library's functions of float; half goes through float.
//
// bfloat has no functions of its own in Metal: MLX's bf16_math.h adds them. The last digits differ
// from a GPU's.
#pragma once

namespace metal {
#define EMU_OF_VECTOR(f)                                                     \
  template <class V> METAL_FUNC if_vector<V> f(V x) {                        \
    V r;                                                                     \
    for (int i = 0; i < parts<V>::count; i++) r[i] = f(x[i]);                \
    return r;                                                                \
  }
#define EMU_OF_VECTORS(f)                                                    \
  template <class V> METAL_FUNC if_vector<V> f(V x, V y) {                   \
    V r;                                                                     \
    for (int i = 0; i < parts<V>::count; i++) r[i] = f(x[i], y[i]);          \
    return r;                                                                \
  }                                                                          \
  template <class V> METAL_FUNC if_vector<V> f(V x, element_of<V> y) {       \
    V r;                                                                     \
    for (int i = 0; i < parts<V>::count; i++) r[i] = f(x[i], y);             \
    return r;                                                                \
  }
#define EMU_FUNCTION(f, value)                                               \
  METAL_FUNC float f(float x) { return value; }                              \
  METAL_FUNC half f(half h) {                                                \
    float x = h;                                                             \
    return (half)(value);                                                    \
  }                                                                          \
  EMU_OF_VECTOR(f)
#define EMU_FUNCTION_OF_TWO(f, value)                                        \
  METAL_FUNC float f(float x, float y) { return value; }                     \
  METAL_FUNC half f(half g, half h) {                                        \
    float x = g, y = h;                                                      \
    return (half)(value);                                                    \
  }                                                                          \
  EMU_OF_VECTORS(f)

// clang-format off
#define EMU_FUNCTIONS(X)                                                                          \
  X(exp, __builtin_expf(x)) X(exp2, __builtin_exp2f(x)) X(exp10, __builtin_powf(10.0f, x))        \
  X(log, __builtin_logf(x)) X(log2, __builtin_log2f(x)) X(log10, __builtin_log10f(x))             \
  X(sqrt, __builtin_sqrtf(x)) X(rsqrt, 1.0f / __builtin_sqrtf(x))                                 \
  X(sin, __builtin_sinf(x)) X(cos, __builtin_cosf(x)) X(tan, __builtin_tanf(x))                   \
  X(asin, __builtin_asinf(x)) X(acos, __builtin_acosf(x)) X(atan, __builtin_atanf(x))             \
  X(sinh, __builtin_sinhf(x)) X(cosh, __builtin_coshf(x)) X(tanh, __builtin_tanhf(x))             \
  X(asinh, __builtin_asinhf(x)) X(acosh, __builtin_acoshf(x)) X(atanh, __builtin_atanhf(x))       \
  X(sinpi, __builtin_sinf(x * M_PI_F)) X(cospi, __builtin_cosf(x * M_PI_F))                       \
  X(tanpi, __builtin_tanf(x * M_PI_F))                                                            \
  X(floor, __builtin_floorf(x)) X(ceil, __builtin_ceilf(x)) X(trunc, __builtin_truncf(x))         \
  X(round, __builtin_roundf(x)) X(rint, __builtin_rintf(x)) X(fabs, __builtin_fabsf(x))           \
  X(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))
#define EMU_FUNCTIONS_OF_TWO(X)                                                                   \
  X(pow, __builtin_powf(x, y)) X(powr, __builtin_powf(x, y)) X(fmod, __builtin_fmodf(x, y))       \
  X(atan2, __builtin_atan2f(x, y)) X(fmin, __builtin_fminf(x, y)) X(fmax, __builtin_fmaxf(x, y))  \
  X(fdim, __builtin_fdimf(x, y)) X(copysign, __builtin_copysignf(x, y))                           \
  X(nextafter, __builtin_nextafterf(x, y)) X(divide, x / y)
// clang-format on

EMU_FUNCTIONS(EMU_FUNCTION)
EMU_FUNCTIONS_OF_TWO(EMU_FUNCTION_OF_TWO)
namespace precise {
EMU_FUNCTIONS(EMU_FUNCTION)
EMU_FUNCTIONS_OF_TWO(EMU_FUNCTION_OF_TWO)
}
namespace fast {
EMU_FUNCTIONS(EMU_FUNCTION)
EMU_FUNCTIONS_OF_TWO(EMU_FUNCTION_OF_TWO)
}

METAL_FUNC float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
METAL_FUNC half fma(half a, half b, half c) { return (half)__builtin_fmaf(a, b, c); }
template <class V> METAL_FUNC if_vector<V> fma(V a, V b, V c) {
  V r;
  for (int i = 0; i < parts<V>::count; i++) r[i] = fma(a[i], b[i], c[i]);
  return r;
}
METAL_FUNC float frexp(float x, thread int& e) { return __builtin_frexpf(x, &e); }
METAL_FUNC float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }

// Of a number and NaN, min and max give the number.
#define EMU_FLOAT_ONLY(T)                                                                  \
  METAL_FUNC T min(T a, T b) { return a != a ? b : b != b ? a : b < a ? b : a; }           \
  METAL_FUNC T max(T a, T b) { return a != a ? b : b != b ? a : a < b ? b : a; }           \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }                \
  METAL_FUNC T abs(T x) { return (T)__builtin_fabsf((float)x); }                           \
  METAL_FUNC bool signbit(T x) { return __builtin_signbit((float)x); }                     \
  METAL_FUNC T sign(T x) { return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x; }                \
  METAL_FUNC T saturate(T x) { return clamp(x, (T)0, (T)1); }                              \
  METAL_FUNC T mix(T a, T b, T t) { return a + (b - a) * t; }                              \
  METAL_FUNC T step(T edge, T x) { return x < edge ? (T)0 : (T)1; }
#define EMU_CLASSIFIED(T)                                                                  \
  METAL_FUNC bool isnan(T x) { return __builtin_isnan((float)x); }                         \
  METAL_FUNC bool isinf(T x) { return __builtin_isinf((float)x); }                         \
  METAL_FUNC bool isfinite(T x) { return __builtin_isfinite((float)x); }
EMU_FLOAT_ONLY(float) EMU_FLOAT_ONLY(half)
EMU_CLASSIFIED(float) EMU_CLASSIFIED(half) EMU_CLASSIFIED(bfloat)

#define EMU_INTEGER_ONLY(T)                                                                \
  METAL_FUNC T min(T a, T b) { return b < a ? b : a; }                                     \
  METAL_FUNC T max(T a, T b) { return a < b ? b : a; }                                     \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }
EMU_INTEGER_ONLY(char) EMU_INTEGER_ONLY(signed char) EMU_INTEGER_ONLY(uchar)
EMU_INTEGER_ONLY(short) EMU_INTEGER_ONLY(ushort) EMU_INTEGER_ONLY(int) EMU_INTEGER_ONLY(uint)
EMU_INTEGER_ONLY(long) EMU_INTEGER_ONLY(ulong)
METAL_FUNC uint abs(int x) { return x < 0 ? 0u - (uint)x : (uint)x; }
METAL_FUNC ulong abs(long x) { return x < 0 ? 0ul - (ulong)x : (ulong)x; }

EMU_OF_VECTORS(min) EMU_OF_VECTORS(max) EMU_OF_VECTOR(abs)
template <class V> METAL_FUNC if_vector<V> clamp(V x, V low, V high) {
  return min(max(x, low), high);
}
template <class T> METAL_FUNC T select(T no, T yes, bool choice) { return choice ? yes : no; }

template <class V> METAL_FUNC if_vector<V, element_of<V>> dot(V a, V b) {
  element_of<V> sum = 0;
  for (int i = 0; i < parts<V>::count; i++) sum += a[i] * b[i];
  return sum;
}
template <class V> METAL_FUNC if_vector<V, bool> any(V a) {
  for (int i = 0; i < parts<V>::count; i++) if (a[i]) return true;
  return false;
}
template <class V> METAL_FUNC if_vector<V, bool> all(V a) {
  for (int i = 0; i < parts<V>::count; i++) if (!a[i]) return false;
  return true;
}
}  // namespace metal
