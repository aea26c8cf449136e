// Combines a layer's dense and routed feed-forward, adds them to the residual, and normalises that.
//
// Twin: kernels/reference.py, add_feed_forward.
//
//   in   residual        T [R, D]
//        feed_forward    T [R, D]       of the dense feed-forward
//        outputs         T [R * K, D]   of the experts, by slot
//        inverse         uint [R, K]    the slots of a row
//        weights         float [R, K]   and their weights
//        dense_norm      float, half or bfloat [D]   weights of the norm of `feed_forward`
//        routed_norm     the same   of the norm of the experts' weighted sum
//        both_norm       the same   of the norm of the sum of these two
//        next_norm       the same   of the norm of `sum`: the next layer's first
//        scalar          the same [1]   what the new residual is multiplied with
//        eps             float
//   out  sum             T [R, D]   (residual + norm(norm(feed_forward) + norm(experts))) * scalar
//        normed          T [R, D]   norm(sum)
//   template  T (float, half or bfloat), D, K, THREADS
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    128 bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row
//   rounding  all in float, experts added in the order of their rank; `sum` is rounded to T before it
//             is normalised
// @body
constexpr int N = (D + THREADS - 1) / THREADS;
threadgroup float partial[32];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint first = threadgroup_position_in_grid.x * K;
size_t row = size_t(threadgroup_position_in_grid.x) * D;
float values[N];
float combined[N];

float squares = 0.0f;
float combined_squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  values[i] = 0.0f;
  combined[i] = 0.0f;
  if (c < D) {
    values[i] = static_cast<float>(feed_forward[row + c]);
    for (uint k = first; k < first + K; k++) {
      combined[i] += weights[k] * static_cast<float>(outputs[size_t(inverse[k]) * D + c]);
    }
  }
  squares += values[i] * values[i];
  combined_squares += combined[i] * combined[i];
}
float scale = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);
float combined_scale =
    inverse_rms(sum_of_threads(combined_squares, partial, lane, group, THREADS / 32), D, eps);

squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    values[i] = values[i] * scale * static_cast<float>(dense_norm[c]) +
        combined[i] * combined_scale * static_cast<float>(routed_norm[c]);
    squares += values[i] * values[i];
  }
}
scale = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);

squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    float added = static_cast<float>(residual[row + c]) +
        values[i] * scale * static_cast<float>(both_norm[c]);
    T scaled = static_cast<T>(added * static_cast<float>(scalar[0]));
    sum[row + c] = scaled;
    values[i] = static_cast<float>(scaled);
    squares += values[i] * values[i];
  }
}
scale = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);

for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    normed[row + c] = static_cast<T>(values[i] * scale * static_cast<float>(next_norm[c]));
  }
}
