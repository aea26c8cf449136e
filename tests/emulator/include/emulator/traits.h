// Metal's <metal_type_traits>: what MLX's headers ask about types.
#pragma once

namespace metal {
template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B> constexpr bool is_same_v = __is_same(A, B);

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class T> struct remove_cv { using type = __remove_cv(T); };
template <class T> using remove_cv_t = __remove_cv(T);
template <class T> struct remove_const { using type = __remove_const(T); };
template <class T> struct remove_reference { using type = __remove_reference_t(T); };
template <class T> using remove_reference_t = __remove_reference_t(T);
template <class T> using remove_pointer_t = __remove_pointer(T);
template <class T> T&& declval();

template <class T>
constexpr bool is_floating_point_v =
    is_same_v<__remove_cv(T), float> || is_same_v<__remove_cv(T), half> ||
    is_same_v<__remove_cv(T), bfloat>;
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> constexpr bool is_integral_v = __is_integral(T);
template <class T> struct is_integral : bool_constant<is_integral_v<T>> {};
template <class T> constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> constexpr bool is_signed_v = __is_signed(T) || is_floating_point_v<T>;
template <class T> struct is_signed : bool_constant<is_signed_v<T>> {};
template <class T> constexpr bool is_unsigned_v = __is_unsigned(T);
template <class T> struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class T> constexpr bool is_pointer_v = __is_pointer(T);
template <class T> struct is_pointer : bool_constant<is_pointer_v<T>> {};
template <class A, class B> constexpr bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class A, class B> constexpr bool is_base_of_v = __is_base_of(A, B);
template <class... B> constexpr bool disjunction_v = (B::value || ...);
template <class T> struct make_unsigned { using type = __make_unsigned(T); };
template <class T> using make_unsigned_t = __make_unsigned(T);
template <class T> struct make_signed { using type = __make_signed(T); };
}  // namespace metal
