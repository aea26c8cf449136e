// Vectors as templates, building one from parts, and as_type.
#pragma once

namespace metal {
template <class T, int N> struct vector_type {
  typedef T type __attribute__((ext_vector_type(N)));
};
template <class T> struct vector_type<T, 1> { typedef T type; };
template <int N> struct vector_type<bool, N> { typedef int type __attribute__((ext_vector_type(N))); };
template <class T, int N> using vec = typename vector_type<T, N>::type;

// parts<V>: how many components, of which type; a scalar is one part.
template <class T> struct parts {
  using element = T;
  static constexpr int count = 1;
  static constexpr bool is_vector = false;
};
#define EMU_PARTS_OF(T, N)                   \
  template <> struct parts<T##N> {           \
    using element = T;                       \
    static constexpr int count = N;          \
    static constexpr bool is_vector = true;  \
  };
#define EMU_PARTS(T) EMU_PARTS_OF(T, 2) EMU_PARTS_OF(T, 3) EMU_PARTS_OF(T, 4)
EMU_ELEMENT_TYPES(EMU_PARTS)
template <class V> using element_of = typename parts<V>::element;
template <class V, class R = V> using if_vector = enable_if_t<parts<V>::is_vector, R>;

template <class V, class A> METAL_FUNC constexpr void append(thread V& v, thread int& i, A a) {
  if constexpr (parts<A>::is_vector) {
    for (int k = 0; k < parts<A>::count; k++) v[i++] = (element_of<V>)a[k];
  } else {
    v[i++] = (element_of<V>)a;
  }
}

// float4(x): every component, or a longer vector cut off; float4(a, b, ...): exactly four parts.
template <class V, class A> METAL_FUNC constexpr V make_vector(A a) {
  V v = {};
  if constexpr (parts<A>::is_vector) {
    static_assert(parts<A>::count >= parts<V>::count, "too few components");
    for (int k = 0; k < parts<V>::count; k++) v[k] = (element_of<V>)a[k];
  } else {
    for (int k = 0; k < parts<V>::count; k++) v[k] = (element_of<V>)a;
  }
  return v;
}
template <class V, class A, class B, class... More>
METAL_FUNC constexpr V make_vector(A a, B b, More... more) {
  static_assert(parts<A>::count + parts<B>::count + (0 + ... + parts<More>::count) == parts<V>::count,
                "wrong number of vector components");
  V v = {};
  int i = 0;
  append(v, i, a);
  append(v, i, b);
  (append(v, i, more), ...);
  return v;
}
}  // namespace metal

template <class To, class From> METAL_FUNC constexpr To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
  return __builtin_bit_cast(To, from);
}
namespace metal { using ::as_type; }
