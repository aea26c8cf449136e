// Gates and ups of the experts, and gelu(gate) * up, with weights unpacked into threadgroup memory.
//
// Twin: kernels/reference_experts.py, gated_products. Slots are pairs of a row and an expert, sorted
// by expert (route.metal).
//
//   in   x        T [R, K]
//        tokens   uint [P]        by slot: its row of x
//        offsets  uint [E + 1]    first slot of every expert, and P
//        weight   uint [E, 2 * F, K * BITS / 32]   packed, the gates of an expert first
//        scales   float, half or bfloat [E, 2 * F, K / GROUP]
//        biases   the same
//   out  out      T [P, F]        by slot
//   template  T (float, half or bfloat), E, K (a multiple of GROUP), F, BITS (4, 8), GROUP (32, 64,
//             128), ROWS of a tile (16, 32)
//   grid      threadgroups of 128: one for 32 columns of out, times one for each tile and some that
//             find none
//   memory    (ROWS + 64) * 40 * sizeof(T) bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row of x, or in its expert's column
//   rounding  weights to T; sums, gelu and product in float, then once to T
// @body
threadgroup T staged_x[ROWS * 40];
threadgroup T staged_weight[64 * 40];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint thread_index = thread_index_in_threadgroup;
uint columns = threadgroup_position_in_grid.x * 32;
ExpertTile tile = find_tile<E, ROWS>(offsets, threadgroup_position_in_grid.y, lane);
if (tile.expert == uint(E)) return;

// Beyond the tile and beyond F the last row is taken again: what comes of it is not stored.
uint copied = metal::min(thread_index / (128 / ROWS), tile.rows - 1);
uint unpacked_row = metal::min(columns + thread_index / 2 % 32, uint(F) - 1) + thread_index / 64 * F;
simdgroup_matrix<float, 8, 8> sums[ROWS / 8][2];
for (int m = 0; m < ROWS / 8; m++) sums[m][0] = sums[m][1] = fragment_of(0.0f, 0.0f);
multiply_staged<T, BITS, GROUP, K, ROWS>(
    sums, x + size_t(tokens[tile.first + copied]) * K,
    packed_row<BITS, GROUP, K>(weight, scales, biases, size_t(tile.expert) * 2 * F + unpacked_row),
    staged_x, staged_weight, tile.rows, thread_index, group, lane);

ushort2 place = place_in_fragment(lane);
for (int m = 0; m < ROWS / 8; m++) {
  uint row = 8 * m + place.x;
  for (int i = 0; i < 2; i++) {
    uint column = columns + 8 * group + place.y + i;
    if (row < tile.rows && column < uint(F)) {
      float value = gated(held(sums[m][0], i), held(sums[m][1], i));
      out[size_t(tile.first + row) * F + column] = static_cast<T>(value);
    }
  }
}
