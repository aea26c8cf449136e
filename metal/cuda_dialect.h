// What the bodies of these kernels mean in CUDA. kernels/cuda.py puts this file before their functions.
//
// A threadgroup is a block and a simdgroup is a warp: both have 32 lanes, numbered along x first. Every
// lane takes part in a simdgroup's operations, as the emulator checks. Barriers order all memory.

#define METAL_FUNC __device__ __forceinline__
#define uint2(x, y) make_uint2(x, y)
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

typedef unsigned int uint;
typedef unsigned short ushort;

namespace metal {

constexpr uint all_lanes = 0xffffffffu;

METAL_FUNC uint thread_index_in_threadgroup() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// The blocks of a launch that counts threads lie in one row, because CUDA takes at most 65,535 of them
// along y and z. Here is where such a block stands, and whether a thread of the last ones has a place.
METAL_FUNC uint3 thread_position_in_grid(const int* grid) {
  uint across = (grid[0] + blockDim.x - 1) / blockDim.x;
  uint down = (grid[1] + blockDim.y - 1) / blockDim.y;
  return make_uint3(blockIdx.x % across * blockDim.x + threadIdx.x,
                    blockIdx.x / across % down * blockDim.y + threadIdx.y,
                    blockIdx.x / across / down * blockDim.z + threadIdx.z);
}
METAL_FUNC bool is_outside(uint3 position, const int* grid) {
  return position.x >= uint(grid[0]) || position.y >= uint(grid[1]) || position.z >= uint(grid[2]);
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
METAL_FUNC void threadgroup_barrier(mem_flags) { __syncthreads(); }
METAL_FUNC void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <typename T> METAL_FUNC T min(T a, T b) { return b < a ? b : a; }
template <typename T> METAL_FUNC T max(T a, T b) { return b > a ? b : a; }
METAL_FUNC bool isnan(float x) { return x != x; }
METAL_FUNC bool isfinite(float x) { return fabsf(x) < INFINITY; }

// Compiled without fast math: within two units in the last place of float.
namespace precise {
METAL_FUNC float exp(float x) { return expf(x); }
METAL_FUNC float log(float x) { return logf(x); }
METAL_FUNC float tanh(float x) { return tanhf(x); }
METAL_FUNC float cos(float x) { return cosf(x); }
METAL_FUNC float sin(float x) { return sinf(x); }
METAL_FUNC float sqrt(float x) { return sqrtf(x); }
METAL_FUNC float rsqrt(float x) { return rsqrtf(x); }
}  // namespace precise

template <typename T> METAL_FUNC T simd_shuffle_xor(T x, ushort lane) {
  return __shfl_xor_sync(all_lanes, x, lane);
}
template <typename T> METAL_FUNC T simd_shuffle(T x, ushort lane) {
  return __shfl_sync(all_lanes, x, lane);
}
template <typename T> METAL_FUNC T simd_broadcast(T x, ushort lane) {
  return __shfl_sync(all_lanes, x, lane);
}
METAL_FUNC bool simd_any(bool x) { return __any_sync(all_lanes, x); }
METAL_FUNC bool simd_all(bool x) { return __all_sync(all_lanes, x); }

// Butterflies: every lane gets the same bits, because it adds the same pairs.
template <typename T> METAL_FUNC T simd_sum(T x) {
  for (int far = 1; far < 32; far *= 2) x += simd_shuffle_xor(x, far);
  return x;
}
template <typename T> METAL_FUNC T simd_max(T x) {
  for (int far = 1; far < 32; far *= 2) x = max(x, simd_shuffle_xor(x, far));
  return x;
}
template <typename T> METAL_FUNC T simd_min(T x) {
  for (int far = 1; far < 32; far *= 2) x = min(x, simd_shuffle_xor(x, far));
  return x;
}
// The sums of the lanes up to this one, moved by one lane: no difference of sums, which would round.
template <typename T> METAL_FUNC T simd_prefix_exclusive_sum(T x) {
  uint lane = thread_index_in_threadgroup() % 32;
  for (int far = 1; far < 32; far *= 2) {
    T before = __shfl_up_sync(all_lanes, x, far);
    if (lane >= uint(far)) x += before;
  }
  T before = __shfl_up_sync(all_lanes, x, 1);
  return lane == 0 ? T(0) : before;
}

}  // namespace metal
using namespace metal;
