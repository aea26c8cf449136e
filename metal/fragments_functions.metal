// Functions of the products with experts that unpack weights straight into fragments.
//
// A threadgroup of four simdgroups multiplies a tile of up to ROWS rows of x with two blocks of 32
// rows of a weight; simdgroup s has rows 8 s to 8 s + 7 of both blocks. Weights go from device memory
// into registers, and only x through threadgroup memory.
//
// A product does not mind in which order its inputs come. A lane holds two neighbouring inputs of one
// row in a fragment; it reads a whole word of that row, V = 32 / BITS inputs, and gives two of them to
// each of V / 2 fragments. The lanes of a row read four words: inputs come in chunks of 4 V, and in
// step j a lane with word p holds inputs V p + 2 j and V p + 2 j + 1 of the chunk. x is put into
// threadgroup memory in that order, INPUTS at a time, its rows side by side.

// Where input k of those in threadgroup memory lies.
template <int BITS>
METAL_FUNC int place_of_input(int k) {
  constexpr int V = 32 / BITS;
  int of_chunk = k % (4 * V);
  int step = of_chunk % V / 2;
  return k - of_chunk + 8 * step + of_chunk / V * 2 + k % 2;
}

// sums[m][b]: this simdgroup's rows of block b, with rows 8 m and on of x.
//   x        all of it
//   sources  the rows of x that this simdgroup copies: its share of the tile, in order
//   first    the row of the first block that this lane unpacks
//   second   the same of the second block
//   rows     of the tile; blocks of eight beyond it are left out
template <typename T, int BITS, int GROUP, int K, int ROWS, int INPUTS, typename Scales>
METAL_FUNC void multiply_fragments(thread simdgroup_matrix<float, 8, 8> (&sums)[ROWS / 8][2],
                                   device const T* x, thread const uint (&sources)[ROWS / 4],
                                   PackedRow<Scales> first, PackedRow<Scales> second,
                                   threadgroup T* staged_x, uint rows, uint simdgroup, uint lane) {
  constexpr int V = 32 / BITS;
  constexpr int STRIDE = ROWS + 8;
  ushort2 place = place_in_fragment(lane);
  threadgroup T* own_x = staged_x + simdgroup * (ROWS / 4);
  threadgroup const T* right = staged_x + place.x * STRIDE + place.y;
  float2 scale = float2(0.0f);
  float2 bias = float2(0.0f);

  for (int start = 0; start < K; start += INPUTS) {
    int count = metal::min(INPUTS, K - start);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what was staged may still be read
    for (int r = 0; r < ROWS / 4; r++) {
      device const T* source = x + size_t(sources[r]) * K + start;
      for (int k = int(lane); k < count; k += 32) {
        own_x[place_of_input<BITS>(k) * STRIDE + r] = source[k];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int chunk = 0; chunk < count; chunk += 4 * V) {
      int k = start + chunk;
      if (k % GROUP == 0) {
        int group = k / GROUP;
        scale = float2(static_cast<float>(first.scales[group]),
                       static_cast<float>(second.scales[group]));
        bias = float2(static_cast<float>(first.biases[group]),
                      static_cast<float>(second.biases[group]));
      }
      uint2 word = uint2(first.words[k / V + place.y / 2], second.words[k / V + place.y / 2]);
      for (int j = 0; j < V / 2; j++) {
        simdgroup_matrix<float, 8, 8> of_weight[2];
        for (int b = 0; b < 2; b++) {
          of_weight[b] = fragment_of(unpacked<BITS>(word[b], 2 * j, scale[b], bias[b]),
                                     unpacked<BITS>(word[b], 2 * j + 1, scale[b], bias[b]));
        }
        for (int m = 0; m < ROWS / 8; m++) {
          if (uint(8 * m) < rows) {
            threadgroup const T* at = right + (chunk + 8 * j) * STRIDE + 8 * m;
            simdgroup_matrix<float, 8, 8> of_x =
                fragment_of(static_cast<float>(at[0]), static_cast<float>(at[1]));
            simdgroup_multiply_accumulate(sums[m][0], of_weight[0], of_x, sums[m][0]);
            simdgroup_multiply_accumulate(sums[m][1], of_weight[1], of_x, sums[m][1]);
          }
        }
      }
    }
  }
}
