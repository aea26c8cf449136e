// What the first layer gets: embeddings scaled, the signal of the step before added, and two norms.
//
// Twin: kernels/reference.py, condition.
//
//   in   embedded   T [R, D]   rows of the embedding
//        signal     T [R, D]   not read if SIGNAL is false
//        next_norm  float, half or bfloat [D]   weights of the first layer's norm
//        scale      T       of the embedding
//        eps        float   of both norms
//   out  sum        T [R, D]   norm(embedded * scale + signal), without weights
//        normed     T [R, D]   norm(sum)
//   template  T (float, half or bfloat), D, THREADS, SIGNAL
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    128 bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row
//   rounding  all in float; `sum` is rounded to T before it is normalised
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
    values[i] = static_cast<float>(embedded[row + c]) * static_cast<float>(scale);
    if (SIGNAL) values[i] += static_cast<float>(signal[row + c]);
  }
  squares += values[i] * values[i];
}
float by = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);
squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    T rounded = static_cast<T>(values[i] * by);
    sum[row + c] = rounded;
    values[i] = static_cast<float>(rounded);
    squares += values[i] * values[i];
  }
}
by = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) normed[row + c] = static_cast<T>(values[i] * by * static_cast<float>(next_norm[c]));
}
