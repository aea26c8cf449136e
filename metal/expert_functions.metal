// Functions of the products with experts: which slots a threadgroup deals with, and what a lane holds.
//
// Letters: E experts, K inputs, N rows of a weight. A tile is a run of up to ROWS slots of one expert,
// counted through all experts, from 0 on. A fragment is an 8x8 simdgroup_matrix.
#include <metal_simdgroup_matrix>

struct ExpertTile {
  uint expert;  // E when there is no such tile
  uint first;   // slot
  uint rows;    // that the expert has from there on: more than ROWS unless the tile is its last
};

// Every simdgroup finds its tile itself: no list of them is made, and nobody waits.
template <int E, int ROWS, typename Offsets>
METAL_FUNC ExpertTile find_tile(Offsets offsets, uint number, uint lane) {
  ExpertTile found = {E, 0, 0};
  uint before = 0;
  for (uint start = 0; start < uint(E); start += 32) {
    uint e = start + lane;
    uint begin = e < uint(E) ? offsets[e] : 0;
    uint rows = e < uint(E) ? offsets[e + 1] - begin : 0;
    uint tiles = (rows + ROWS - 1) / ROWS;
    uint tile = before + simd_prefix_exclusive_sum(tiles);  // the expert's first
    if (tile <= number && number < tile + tiles) {
      uint skipped = (number - tile) * ROWS;
      found.expert = e;
      found.first = begin + skipped;
      found.rows = rows - skipped;
    }
    before = simd_broadcast(tile + tiles, 31);
  }
  found.expert = simd_min(found.expert);  // one lane at most has found it
  found.first = simd_max(found.first);
  found.rows = simd_max(found.rows);
  return found;
}

// One row of a packed weight: BITS bits a number, a scale and a bias for every GROUP of them.
template <typename Scales>
struct PackedRow {
  device const uint* words;
  Scales scales;
  Scales biases;
};

template <int BITS, int GROUP, int K, typename Scales>
METAL_FUNC PackedRow<Scales> packed_row(device const uint* words, Scales scales, Scales biases,
                                        size_t row) {
  size_t group = row * (K / GROUP);
  PackedRow<Scales> found = {words + row * (K / 32 * BITS), scales + group, biases + group};
  return found;
}

// Number `i` of a word.
template <int BITS>
METAL_FUNC float unpacked(uint word, int i, float scale, float bias) {
  return scale * float((word >> (BITS * i)) & ((1u << BITS) - 1u)) + bias;
}

// A lane holds two neighbours in a row of a fragment: the row, and the column of the first. MLX's own
// kernels rely on this map too.
METAL_FUNC ushort2 place_in_fragment(uint lane) {
  uint quad = lane / 4;
  return ushort2((quad & 4) + lane / 2 % 4, (quad & 2) * 2 + lane % 2 * 2);
}

METAL_FUNC simdgroup_matrix<float, 8, 8> fragment_of(float first, float second) {
  simdgroup_matrix<float, 8, 8> made;
  reinterpret_cast<thread float2&>(made.thread_elements()) = float2(first, second);
  return made;
}

METAL_FUNC float held(thread simdgroup_matrix<float, 8, 8>& fragment, int i) {
  return reinterpret_cast<thread float2&>(fragment.thread_elements())[i];
}

// gelu(gate) * up, in the tanh form.
METAL_FUNC float gated(float gate, float up) {
  float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
  return 0.5f * gate * (1.0f + metal::precise::tanh(inner)) * up;
}
