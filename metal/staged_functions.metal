// Functions of the products with experts that unpack weights into threadgroup memory.
//
// A threadgroup of four simdgroups multiplies a tile of up to ROWS rows of x with two blocks of 32
// rows of a weight; simdgroup s has rows 8 s to 8 s + 7 of both blocks. All numbers go through
// threadgroup memory, 32 inputs at a time; their rows lie 40 apart so that fewer banks collide.

// sums[m][b]: rows 8 m and on of x, with this simdgroup's rows of block b.
//   x        the row of x that this thread copies: row thread / (128 / ROWS) of the tile
//   weight   the packed row that this thread unpacks: row thread / 2 of the two blocks
//   rows     of the tile; blocks of eight beyond it are left out
template <typename T, int BITS, int GROUP, int K, int ROWS, typename Scales>
METAL_FUNC void multiply_staged(thread simdgroup_matrix<float, 8, 8> (&sums)[ROWS / 8][2],
                                device const T* x, PackedRow<Scales> weight,
                                threadgroup T* staged_x, threadgroup T* staged_weight, uint rows,
                                uint thread_index, uint simdgroup, uint lane) {
  constexpr int STRIDE = 40;
  constexpr int COPIED = ROWS / 4;           // numbers of x for each thread
  constexpr int PER_WORD = 32 / BITS;
  constexpr int WORDS = 16 / PER_WORD;       // of packed weights for each thread
  int x_column = int(thread_index) % (128 / ROWS) * COPIED;
  threadgroup T* own_x = staged_x + thread_index / (128 / ROWS) * STRIDE + x_column;
  int weight_column = int(thread_index) % 2 * 16;
  threadgroup T* own_weight = staged_weight + thread_index / 2 * STRIDE + weight_column;
  ushort2 place = place_in_fragment(lane);
  threadgroup const T* left = staged_x + place.x * STRIDE + place.y;
  threadgroup const T* right = staged_weight + (8 * simdgroup + place.y) * STRIDE + place.x;
  float scale = 0.0f;
  float bias = 0.0f;

  for (int k = 0; k < K; k += 32) {
    if (k % GROUP == 0) {
      scale = static_cast<float>(weight.scales[k / GROUP]);
      bias = static_cast<float>(weight.biases[k / GROUP]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what was staged may still be read
    for (int i = 0; i < COPIED; i++) own_x[i] = x[k + x_column + i];
    for (int w = 0; w < WORDS; w++) {
      uint word = weight.words[(k + weight_column) / PER_WORD + w];
      for (int i = 0; i < PER_WORD; i++) {
        own_weight[w * PER_WORD + i] = static_cast<T>(unpacked<BITS>(word, i, scale, bias));
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int inner = 0; inner < 32; inner += 8) {
      simdgroup_matrix<float, 8, 8> of_weight[2];
      for (int b = 0; b < 2; b++) {
        threadgroup const T* at = right + 32 * STRIDE * b + inner;
        of_weight[b] = fragment_of(static_cast<float>(at[0]), static_cast<float>(at[STRIDE]));
      }
      for (int m = 0; m < ROWS / 8; m++) {
        if (uint(8 * m) < rows) {
          threadgroup const T* at = left + 8 * STRIDE * m + inner;
          simdgroup_matrix<float, 8, 8> of_x =
              fragment_of(static_cast<float>(at[0]), static_cast<float>(at[1]));
          simdgroup_multiply_accumulate(sums[m][0], of_x, of_weight[0], sums[m][0]);
          simdgroup_multiply_accumulate(sums[m][1], of_x, of_weight[1], sums[m][1]);
        }
      }
    }
  }
}
