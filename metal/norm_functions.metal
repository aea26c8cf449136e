// Functions of the kernels that normalise rows: a row belongs to a threadgroup.

// Sum over all threads of a threadgroup, the same for each. `partial` has room for a number of each
// simdgroup, at most 32.
METAL_FUNC float sum_of_threads(float x, threadgroup float* partial, uint lane, uint simdgroup,
                                uint simdgroups) {
  float own = simd_sum(x);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // `partial` may still be read
  if (lane == 0) partial[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// What a row is multiplied with, from the sum of its squares.
METAL_FUNC float inverse_rms(float squares, int count, float eps) {
  return metal::precise::rsqrt(squares / float(count) + eps);
}
