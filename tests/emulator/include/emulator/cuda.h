// The words of CUDA that kernels use, on the emulator's threads.
//
// A block is a threadgroup, a warp 32 of its threads in order.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "emulator/lanes.h"

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define threadgroup  // what __shared__ has become

typedef _Float16 __half;
typedef __bf16 __nv_bfloat16;
struct uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
inline EMU_UNCHECKED uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline EMU_UNCHECKED uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

namespace mlx::core::cu {
struct Shape {
  int values[10];
  int operator[](int i) const { return values[i]; }
};
struct Strides {
  int64_t values[10];
  int64_t operator[](int i) const { return values[i]; }
};
}  // namespace mlx::core::cu
namespace cooperative_groups {}

// Where a thread stands. The launch is the one that runs: there is one at a time.
static EmuLaunch* emu_now;
inline EMU_UNCHECKED uint3 emu_triple(const unsigned* v) { return {v[0], v[1], v[2]}; }
inline EMU_UNCHECKED uint3 emu_place() {
  const unsigned* size = emu_now->full_size;
  unsigned index = emu_thread_index();
  return {index % size[0], index / size[0] % size[1], index / size[0] / size[1]};
}
#define threadIdx emu_place()
#define blockIdx emu_triple(emu_now->position)
#define blockDim emu_triple(emu_now->full_size)

// They order all memory, of the block and of the device.
#define __syncthreads() \
  emu_threadgroup_barrier(EMU_DEVICE | EMU_THREADGROUP, EmuSite{"__syncthreads", __FILE__, __LINE__})
#define __syncwarp() \
  emu_simdgroup_barrier(EMU_DEVICE | EMU_THREADGROUP, EmuSite{"__syncwarp", __FILE__, __LINE__})

// The mask names the lanes that must take part: those that have returned, or never were, must not be
// in it.
inline EMU_UNCHECKED void emu_all_there(unsigned mask, EmuSite site) {
  unsigned active = metal::lanes::votes(true, site).active;
  for (int lane = 0; lane < EMU_LANES; lane++) {
    if ((mask >> lane & 1) && !(active >> lane & 1)) emu_inactive_lane(lane, site);
  }
}
#define EMU_WARP_SHUFFLE(name, from)                                                      \
  template <class T> inline EMU_UNCHECKED T name(unsigned mask, T x, int n, EMU_SITE(#name)) { \
    emu_all_there(mask, site);                                                            \
    return metal::lanes::shuffled<T>(x, from, site);                                      \
  }
EMU_WARP_SHUFFLE(__shfl_sync, n % EMU_LANES)
EMU_WARP_SHUFFLE(__shfl_xor_sync, metal::lanes::own() ^ n)
EMU_WARP_SHUFFLE(__shfl_up_sync, metal::lanes::own() - n)
EMU_WARP_SHUFFLE(__shfl_down_sync, metal::lanes::own() + n)
inline EMU_UNCHECKED bool __any_sync(unsigned mask, bool vote, EMU_SITE("__any_sync")) {
  emu_all_there(mask, site);
  return metal::lanes::votes(vote, site).yes != 0;
}
inline EMU_UNCHECKED bool __all_sync(unsigned mask, bool vote, EMU_SITE("__all_sync")) {
  emu_all_there(mask, site);
  return metal::lanes::votes(vote, site).yes == mask;
}

extern "C" {
float expf(float);
float logf(float);
float tanhf(float);
float cosf(float);
float sinf(float);
float sqrtf(float);
float fabsf(float);
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline constexpr float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
