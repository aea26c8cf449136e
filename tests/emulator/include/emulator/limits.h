// metal::numeric_limits.
#pragma once

namespace metal {
template <class T> struct numeric_limits;

#define EMU_INTEGER_LIMITS(T, LOW, HIGH)                                          \
  template <> struct numeric_limits<T> {                                          \
    static constexpr bool is_specialized = true, is_integer = true;               \
    static constexpr T min() { return LOW; }                                      \
    static constexpr T lowest() { return LOW; }                                   \
    static constexpr T max() { return HIGH; }                                     \
    static constexpr T infinity() { return 0; }                                   \
    static constexpr T quiet_NaN() { return 0; }                                  \
  };
EMU_INTEGER_LIMITS(bool, false, true)
EMU_INTEGER_LIMITS(char, -128, 127)
EMU_INTEGER_LIMITS(signed char, -128, 127)
EMU_INTEGER_LIMITS(uchar, 0, 255)
EMU_INTEGER_LIMITS(short, -32768, 32767)
EMU_INTEGER_LIMITS(ushort, 0, 65535)
EMU_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
EMU_INTEGER_LIMITS(uint, 0, 4294967295u)
EMU_INTEGER_LIMITS(long, -9223372036854775807L - 1, 9223372036854775807L)
EMU_INTEGER_LIMITS(ulong, 0, 18446744073709551615ul)

#define EMU_FLOAT_LIMITS(T, SMALLEST, LARGEST, STEP)                              \
  template <> struct numeric_limits<T> {                                          \
    static constexpr bool is_specialized = true, is_integer = false;              \
    static constexpr T min() { return (T)SMALLEST; }                              \
    static constexpr T lowest() { return (T)-LARGEST; }                           \
    static constexpr T max() { return (T)LARGEST; }                               \
    static constexpr T epsilon() { return (T)STEP; }                              \
    static constexpr T infinity() { return (T)__builtin_inff(); }                 \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }              \
  };
EMU_FLOAT_LIMITS(float, __FLT_MIN__, __FLT_MAX__, __FLT_EPSILON__)
EMU_FLOAT_LIMITS(half, 6.103515625e-05f, 65504.0f, 9.765625e-04f)
EMU_FLOAT_LIMITS(bfloat, 1.17549435e-38f, 3.38953139e+38f, 7.8125e-03f)
}  // namespace metal
