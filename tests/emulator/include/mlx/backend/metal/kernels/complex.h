// In place of MLX's complex.h, whose constructors name address spaces: no kernel of ours is complex.
#pragma once
#include <metal_stdlib>

template <class T> struct complex_t {
  T real, imag;
  constexpr complex_t() : real(0), imag(0) {}
  constexpr complex_t(T r, T i) : real(r), imag(i) {}
};
template <class T> static constexpr bool is_complex_v = false;
using complex64_t = complex_t<float>;
