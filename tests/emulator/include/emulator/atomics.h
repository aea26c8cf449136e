// Relaxed atomics. All threads are fibers of one OS thread, so that plain operations are atomic.
#pragma once

namespace metal {
template <class T> struct atomic {
  static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, float> ||
                    is_same_v<T, ulong> || is_same_v<T, bool>,
                "Metal has atomic<int|uint|float|ulong|bool> only");
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;

namespace atomics {
template <class T> struct exactly { using type = T; };  // keeps T from being deduced twice

struct Load { static constexpr bool reads = true, writes = false; };
struct Store { static constexpr bool reads = false, writes = true; };
struct Update { static constexpr bool reads = true, writes = true; };
template <class Access, class T>
inline EMU_UNCHECKED void announce(T* at, const void* caller) {
  emu_atomic(at, sizeof(T), Access::reads, Access::writes, caller);
}
}  // namespace atomics

// noinline, so that the return address is in the kernel: the place that a message names.
#define EMU_ATOMIC template <class T> __attribute__((noinline)) EMU_UNCHECKED
#define EMU_PLAIN(object) ((T*)(uintptr_t)(object))
#define EMU_CALLER __builtin_return_address(0)
#define EMU_UPDATE(space, name, condition, expression)                                       \
  EMU_ATOMIC enable_if_t<condition, T> atomic_##name##_explicit(                             \
      volatile space atomic<T>* object, typename atomics::exactly<T>::type b, memory_order) { \
    T* at = EMU_PLAIN(object);                                                               \
    atomics::announce<atomics::Update>(at, EMU_CALLER);                                      \
    T a = *at;                                                                               \
    *at = (T)(expression);                                                                   \
    return a;                                                                                \
  }
#define EMU_NOT_FLOAT (!is_same_v<T, float>)
#define EMU_ATOMICS(space)                                                                   \
  EMU_ATOMIC T atomic_load_explicit(const volatile space atomic<T>* object, memory_order) {  \
    T* at = EMU_PLAIN(object);                                                               \
    atomics::announce<atomics::Load>(at, EMU_CALLER);                                        \
    return *at;                                                                              \
  }                                                                                          \
  EMU_ATOMIC void atomic_store_explicit(volatile space atomic<T>* object,                    \
                                        typename atomics::exactly<T>::type b, memory_order) { \
    T* at = EMU_PLAIN(object);                                                               \
    atomics::announce<atomics::Store>(at, EMU_CALLER);                                       \
    *at = b;                                                                                 \
  }                                                                                          \
  EMU_ATOMIC bool atomic_compare_exchange_weak_explicit(                                     \
      volatile space atomic<T>* object, thread T* expected,                                  \
      typename atomics::exactly<T>::type b, memory_order, memory_order) {                    \
    T* at = EMU_PLAIN(object);                                                               \
    atomics::announce<atomics::Update>(at, EMU_CALLER);                                      \
    bool equal = *at == *expected;                                                           \
    if (equal) *at = b; else *expected = *at;                                                \
    return equal;                                                                            \
  }                                                                                          \
  EMU_UPDATE(space, exchange, true, b)                                                       \
  EMU_UPDATE(space, fetch_add, true, a + b)                                                  \
  EMU_UPDATE(space, fetch_sub, true, a - b)                                                  \
  EMU_UPDATE(space, fetch_and, EMU_NOT_FLOAT, a & b)                                         \
  EMU_UPDATE(space, fetch_or, EMU_NOT_FLOAT, a | b)                                          \
  EMU_UPDATE(space, fetch_xor, EMU_NOT_FLOAT, a ^ b)                                         \
  EMU_UPDATE(space, fetch_min, EMU_NOT_FLOAT, b < a ? b : a)                                 \
  EMU_UPDATE(space, fetch_max, EMU_NOT_FLOAT, a < b ? b : a)
#if EMU_TYPES
EMU_ATOMICS(device)
EMU_ATOMICS(threadgroup)
#else
EMU_ATOMICS()
#endif
}  // namespace metal
