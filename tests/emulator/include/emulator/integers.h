// Metal's <metal_integer>: bits.
#pragma once

namespace metal {
#define EMU_BITS(T, U, WIDTH)                                                              \
  METAL_FUNC T popcount(T x) { return (T)__builtin_popcountll((U)x); }                     \
  METAL_FUNC T clz(T x) { return x ? (T)(__builtin_clzll((U)x) - (64 - WIDTH)) : (T)WIDTH; } \
  METAL_FUNC T ctz(T x) { return x ? (T)__builtin_ctzll((U)x) : (T)WIDTH; }                \
  METAL_FUNC T reverse_bits(T x) {                                                         \
    U from = (U)x, to = 0;                                                                 \
    for (int i = 0; i < WIDTH; i++) to = (U)((ulong)to << 1) | (U)(from >> i & 1);         \
    return (T)to;                                                                          \
  }
EMU_BITS(char, uchar, 8) EMU_BITS(uchar, uchar, 8) EMU_BITS(short, ushort, 16)
EMU_BITS(ushort, ushort, 16) EMU_BITS(int, uint, 32) EMU_BITS(uint, uint, 32)
EMU_BITS(long, ulong, 64) EMU_BITS(ulong, ulong, 64)

METAL_FUNC uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
METAL_FUNC int mulhi(int a, int b) { return (int)((long)a * b >> 32); }
METAL_FUNC uint rotate(uint x, uint n) { return n & 31 ? x << (n & 31) | x >> (32 - (n & 31)) : x; }
METAL_FUNC uint extract_bits(uint x, uint offset, uint bits) {
  return bits >= 32 ? x >> offset : x >> offset & ((1u << bits) - 1);
}
}  // namespace metal
