// The last product of the experts, with weights unpacked into threadgroup memory.
//
// Twin: kernels/reference_experts.py, down_products. Slots are pairs of a row and an expert, sorted by
// expert (route.metal).
//
//   in   x        T [P, K]        by slot
//        offsets  uint [E + 1]    first slot of every expert, and P
//        weight   uint [E, N, K * BITS / 32]   packed
//        scales   float, half or bfloat [E, N, K / GROUP]
//        biases   the same
//   out  out      T [P, N]        by slot
//   template  T (float, half or bfloat), E, K (a multiple of GROUP), N, BITS (4, 8), GROUP (32, 64,
//             128), ROWS of a tile (16, 32)
//   grid      threadgroups of 128: one for 64 columns of out, times one for each tile and some that
//             find none
//   memory    (ROWS + 64) * 40 * sizeof(T) bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row of x, or in its expert's column
//   rounding  weights to T; sums in float, then once to T
// @body
threadgroup T staged_x[ROWS * 40];
threadgroup T staged_weight[64 * 40];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint thread_index = thread_index_in_threadgroup;
uint columns = threadgroup_position_in_grid.x * 64;
ExpertTile tile = find_tile<E, ROWS>(offsets, threadgroup_position_in_grid.y, lane);
if (tile.expert == uint(E)) return;

// Beyond the tile and beyond N the last row is taken again: what comes of it is not stored.
uint copied = metal::min(thread_index / (128 / ROWS), tile.rows - 1);
uint unpacked_row = metal::min(columns + thread_index / 2, uint(N) - 1);
simdgroup_matrix<float, 8, 8> sums[ROWS / 8][2];
for (int m = 0; m < ROWS / 8; m++) sums[m][0] = sums[m][1] = fragment_of(0.0f, 0.0f);
multiply_staged<T, BITS, GROUP, K, ROWS>(
    sums, x + size_t(tile.first + copied) * K,
    packed_row<BITS, GROUP, K>(weight, scales, biases, size_t(tile.expert) * N + unpacked_row),
    staged_x, staged_weight, tile.rows, thread_index, group, lane);

ushort2 place = place_in_fragment(lane);
for (int m = 0; m < ROWS / 8; m++) {
  uint row = 8 * m + place.x;
  for (int b = 0; b < 2; b++) {
    for (int i = 0; i < 2; i++) {
      uint column = columns + 32 * b + 8 * group + place.y + i;
      if (row < tile.rows && column < uint(N)) {
        out[size_t(tile.first + row) * N + column] = static_cast<T>(held(sums[m][b], i));
      }
    }
  }
}
