// Adds the normalised attention output to the residual, and normalises the sum for what follows.
//
// Twin: kernels/reference.py, add_attention.
//
//   in   residual        T [R, D]
//        attended        T [R, D]   of the attention layer
//        attended_norm   float, half or bfloat [D]   weights of its norm
//        dense_norm      the same   of the norm before the dense feed-forward
//        router_scale    the same   of the router
//        eps             float
//   out  sum             T [R, D]   residual + norm(attended)
//        dense           T [R, D]   norm(sum), weighted with dense_norm
//        router          T [R, D]   the same with router_scale / sqrt(D)
//        rms_inverses    float [R]  what each row of `sum` is multiplied with: the experts' norm is
//                                   taken where their rows are gathered
//   template  T (float, half or bfloat), D, THREADS
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    128 bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row
//   rounding  all in float; `sum` is rounded to T before it is normalised, as it is what stays
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
  values[i] = c < D ? static_cast<float>(attended[row + c]) : 0.0f;
  squares += values[i] * values[i];
}
float scale = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);

squares = 0.0f;
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    float normed = values[i] * scale * static_cast<float>(attended_norm[c]);
    T added = static_cast<T>(static_cast<float>(residual[row + c]) + normed);
    sum[row + c] = added;
    values[i] = static_cast<float>(added);
    squares += values[i] * values[i];
  }
}
scale = inverse_rms(sum_of_threads(squares, partial, lane, group, THREADS / 32), D, eps);

if (thread_index_in_threadgroup == 0) rms_inverses[threadgroup_position_in_grid.x] = scale;
float router_root = metal::precise::rsqrt(float(D));
for (int i = 0; i < N; i++) {
  int c = int(thread_index_in_threadgroup) + THREADS * i;
  if (c < D) {
    float normed = values[i] * scale;
    dense[row + c] = static_cast<T>(normed * static_cast<float>(dense_norm[c]));
    router[row + c] = static_cast<T>(normed * static_cast<float>(router_scale[c]) * router_root);
  }
}
