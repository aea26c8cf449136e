// The last product of the experts, with weights unpacked straight into fragments.
//
// Twin: kernels/reference_experts.py, down_products. Slots are pairs of a row and an expert, sorted
// by expert (route.metal).
//
//   in   x        T [P, K]        by slot
//        offsets  uint [E + 1]    first slot of every expert, and P
//        weight   uint [E, N, K * BITS / 32]   packed
//        scales   float, half or bfloat [E, N, K / GROUP]
//        biases   the same
//   out  out      T [P, N]        by slot
//   template  T (float, half or bfloat), E, K (a multiple of GROUP), N, BITS (4, 8), GROUP (32, 64,
//             128), ROWS of a tile (16, 32), INPUTS in threadgroup memory at once (a multiple of 128)
//   grid      threadgroups of 128: one for 64 columns of out, times one for each tile and some that
//             find none
//   memory    INPUTS * (ROWS + 8) * sizeof(T) bytes of threadgroup memory
//   ties      none
//   NaN       stays in its row of x, or in its expert's column
//   rounding  all in float, then once to T
// @body
threadgroup T staged_x[INPUTS * (ROWS + 8)];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
ExpertTile tile = find_tile<E, ROWS>(offsets, threadgroup_position_in_grid.y, lane);
if (tile.expert == uint(E)) return;

// Beyond the tile and beyond N the last row is taken again: what comes of it is not stored.
uint sources[ROWS / 4];
for (uint r = 0; r < uint(ROWS / 4); r++) {
  sources[r] = tile.first + metal::min(group * (ROWS / 4) + r, tile.rows - 1);
}
ushort2 place = place_in_fragment(lane);
uint column = threadgroup_position_in_grid.x * 64 + 8 * group + place.x;
size_t begin = size_t(tile.expert) * N;
simdgroup_matrix<float, 8, 8> sums[ROWS / 8][2];
for (int m = 0; m < ROWS / 8; m++) sums[m][0] = sums[m][1] = fragment_of(0.0f, 0.0f);
multiply_fragments<T, BITS, GROUP, K, ROWS, INPUTS>(
    sums, x, sources,
    packed_row<BITS, GROUP, K>(weight, scales, biases, begin + metal::min(column, uint(N) - 1)),
    packed_row<BITS, GROUP, K>(weight, scales, biases, begin + metal::min(column + 32, uint(N) - 1)),
    staged_x, tile.rows, group, lane);

for (int m = 0; m < ROWS / 8; m++) {
  for (int b = 0; b < 2; b++) {
    for (int i = 0; i < 2; i++) {
      uint row = 8 * m + place.y + i;
      uint at = column + 32 * b;
      if (row < tile.rows && at < uint(N)) {
        out[size_t(tile.first + row) * N + at] = static_cast<T>(held(sums[m][b], i));
      }
    }
  }
}
