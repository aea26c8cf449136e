// Adds up the embeddings of the survivors of each row, by their probabilities; the embedding is packed.
//
// Twin: kernels/reference_sparse.py, sum_survivors.
//
//   in   tokens         int [R, K]
//        probabilities  float [R, K]
//        counts         int [R]   how many of them are read
//        weight         uint [V, D * BITS / 32]   as mx.quantize packs it, mode affine
//        scales         float, half or bfloat [V, D / GROUP]
//        biases         the same
//   out  soft           T [R, D]
//        squares        float [R, P]   sums of squares of `soft`, of 32 threads each
//   template  T (float, half or bfloat), D, K, BITS (4 or 8), GROUP
//   grid      a thread for each packed word of a row, their number rounded up to 32 P; R
//   memory    none
//   ties      none
//   NaN       of a survivor's embedding stays in its row and column
//   rounding  sums in float, in the order of the survivors; `soft` once, `squares` are those before
// @body
constexpr int EACH = 32 / BITS;
constexpr int WORDS = D / EACH;
constexpr uint MASK = (1u << BITS) - 1u;
uint row = thread_position_in_grid.y;
uint word = thread_position_in_grid.x;
float sums[EACH];
for (int i = 0; i < EACH; i++) sums[i] = 0.0f;
if (word < uint(WORDS)) {
  for (int j = 0; j < counts[row]; j++) {
    size_t token = size_t(tokens[row * K + j]);
    float probability = probabilities[row * K + j];
    size_t group = token * (D / GROUP) + word * EACH / GROUP;
    float scale = probability * static_cast<float>(scales[group]);
    float bias = probability * static_cast<float>(biases[group]);
    uint packed = weight[token * WORDS + word];
    for (int i = 0; i < EACH; i++) {
      sums[i] += scale * float((packed >> (BITS * i)) & MASK) + bias;
    }
  }
}
float own = 0.0f;
for (int i = 0; i < EACH; i++) {
  if (word < uint(WORDS)) soft[size_t(row) * D + word * EACH + i] = static_cast<T>(sums[i]);
  own += sums[i] * sums[i];
}
own = simd_sum(own);
if (thread_index_in_simdgroup == 0) squares[row * (threads_per_grid.x / 32) + word / 32] = own;
