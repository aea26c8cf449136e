// Gates and ups of the experts, and gelu(gate) * up, with weights unpacked straight into fragments.
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
//             128), ROWS of a tile (16, 32), INPUTS in threadgroup memory at once (a multiple of 128)
//   grid      threadgroups of 128: one for 32 columns of out, times one for each tile and some that
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

// Beyond the tile and beyond F the last row is taken again: what comes of it is not stored.
uint sources[ROWS / 4];
for (uint r = 0; r < uint(ROWS / 4); r++) {
  sources[r] = tokens[tile.first + metal::min(group * (ROWS / 4) + r, tile.rows - 1)];
}
ushort2 place = place_in_fragment(lane);
uint column = threadgroup_position_in_grid.x * 32 + 8 * group + place.x;
size_t gate = size_t(tile.expert) * 2 * F + metal::min(column, uint(F) - 1);
simdgroup_matrix<float, 8, 8> sums[ROWS / 8][2];
for (int m = 0; m < ROWS / 8; m++) sums[m][0] = sums[m][1] = fragment_of(0.0f, 0.0f);
multiply_fragments<T, BITS, GROUP, K, ROWS, INPUTS>(
    sums, x, sources, packed_row<BITS, GROUP, K>(weight, scales, biases, gate),
    packed_row<BITS, GROUP, K>(weight, scales, biases, gate + F), staged_x, tile.rows, group, lane);

for (int m = 0; m < ROWS / 8; m++) {
  for (int i = 0; i < 2; i++) {
    uint row = 8 * m + place.y + i;
    if (row < tile.rows && column < uint(F)) {
      float value = gated(held(sums[m][0], i), held(sums[m][1], i));
      out[size_t(tile.first + row) * F + column] = static_cast<T>(value);
    }
  }
}
