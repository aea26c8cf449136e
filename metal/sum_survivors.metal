// Adds up the embeddings of the survivors of each row, by their probabilities.
//
// Twin: kernels/reference_sparse.py, sum_survivors.
//
//   in   tokens         int [R, K]
//        probabilities  float [R, K]
//        counts         int [R]   how many of them are read
//        weight         float, half or bfloat [V, D]   the embedding
//   out  soft           T [R, D]
//        squares        float [R, P]   sums of squares of `soft`, of 32 threads each
//   template  T (float, half or bfloat), D, K
//   grid      a thread for four columns, their number rounded up to 32 P; R
//   memory    none
//   ties      none
//   NaN       of a survivor's embedding stays in its row and column
//   rounding  sums in float, in the order of the survivors; `soft` once, `squares` are those before
// @body
constexpr int EACH = 4;
uint row = thread_position_in_grid.y;
uint column = thread_position_in_grid.x * EACH;
float sums[EACH] = {0.0f, 0.0f, 0.0f, 0.0f};
for (int j = 0; j < counts[row]; j++) {
  size_t first = size_t(tokens[row * K + j]) * D;
  float probability = probabilities[row * K + j];
  for (int i = 0; i < EACH; i++) {
    if (column + i < D) sums[i] += probability * static_cast<float>(weight[first + column + i]);
  }
}
float own = 0.0f;
for (int i = 0; i < EACH; i++) {
  if (column + i < D) soft[size_t(row) * D + column + i] = static_cast<T>(sums[i]);
  own += sums[i] * sums[i];
}
own = simd_sum(own);
if (thread_index_in_simdgroup == 0) {
  squares[row * (threads_per_grid.x / 32) + thread_position_in_grid.x / 32] = own;
}
