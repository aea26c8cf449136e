// The first norm of self-conditioning, of a soft embedding that comes in one or two parts.
//
// Twin: kernels/reference.py, soft_norm.
//
//   in   one     T [R, D]
//        other   T [R, D]   not read if TWO is false
//        weight  float, half or bfloat [D]
//        scale   T       of the embedding
//        eps     float
//   out  normed  T [R, D]   norm((one + other) * scale)
//   template  T (float, half or bfloat), D, THREADS, TWO
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    128 bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row
//   rounding  once, from float
// @body
constexpr int N = (D + THREADS - 1) / THREADS;
threadgroup float partial[32];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
size_t row = size_t(threadgroup_position_in_grid.x) * D;
float values[N];
float squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  values[i] = 0.0f;
  if (c < D) {
    float sum = static_cast<float>(one[row + c]);
    if (TWO) sum += static_cast<float>(other[row + c]);
    values[i] = sum * static_cast<float>(scale);
  }
  squares += values[i] * values[i];
}
float by = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) normed[row + c] = static_cast<T>(values[i] * by * static_cast<float>(weight[c]));
}
