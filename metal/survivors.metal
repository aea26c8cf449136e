// Picks the likeliest tokens of each row of logits, and bounds what the others add to a sum.
//
// Twin: kernels/reference_sparse.py, survivors.
//
//   in   logits         float, half or bfloat [R, V]   as the head wrote them
//        normaliser     float [R]   log of the sum of exp of the scaled logits
//        best           int [R]     index of the largest
//        norms          float [V]   length of each token's row in the embedding
//        cap            float   softcap, 0 for none
//        temperature    float
//        depth          float   how far below the best a scaled logit may lie
//   out  tokens         int [R, K]     the survivors in the order of their ids, then zeros
//        probabilities  float [R, K]   theirs, not renormalised, then zeros
//        counts         int [R]        how many there are
//        error          float [R]      at least the sum of probability * norm of all other tokens
//   template  THREADS, K
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    384 bytes of threadgroup memory
//   ties      a logit of exactly the best minus `depth` survives; of more than K survivors those with
//             the lower ids stay, and the others count as dropped
//   NaN       a row with NaN or +inf, or of -inf only, has error NaN; what is written as a token is
//             one all the same
//   rounding  all in float; `error` is a sum in another order than the twin's, made a thousandth
//             larger: more than its rounding
// @body
constexpr int EACH = 8;
int vocabulary = logits_shape[1];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint row = threadgroup_position_in_grid.x;
size_t first = size_t(row) * vocabulary;
threadgroup int of_groups[64];  // of two blocks in turn, so that one barrier a block is enough
threadgroup float partial[32];

float least = logit_of(static_cast<float>(logits[first + best[row]]), cap, temperature) - depth;
int found = 0;
int turn = 0;
float dropped = 0.0f;
for (int block = 0; block < vocabulary; block += THREADS * EACH) {
  int start = block + int(thread_index_in_threadgroup) * EACH;
  float weights[EACH];
  bool survives[EACH];
  int own = 0;
  for (int e = 0; e < EACH; e++) {
    weights[e] = 0.0f;
    survives[e] = false;
    if (start + e < vocabulary) {
      float logit = logit_of(static_cast<float>(logits[first + start + e]), cap, temperature);
      weights[e] = metal::precise::exp(logit - normaliser[row]);
      survives[e] = logit >= least;
      own += survives[e] ? 1 : 0;
    }
  }
  int place = found + simd_prefix_exclusive_sum(own);
  own = simd_sum(own);
  if (lane == 0) of_groups[turn + group] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int of_group = lane < THREADS / 32 ? of_groups[turn + lane] : 0;
  place += simd_broadcast(simd_prefix_exclusive_sum(of_group), ushort(group));
  found += simd_sum(of_group);
  turn = 32 - turn;

  for (int e = 0; e < EACH; e++) {
    if (survives[e] && place < K) {
      tokens[row * K + place] = start + e;
      probabilities[row * K + place] = weights[e];
    } else if (start + e < vocabulary) {
      dropped += weights[e] * norms[start + e];
    }
    place += survives[e] ? 1 : 0;
  }
}
found = metal::min(found, K);
for (int i = found + int(thread_index_in_threadgroup); i < K; i += THREADS) {
  tokens[row * K + i] = 0;
  probabilities[row * K + i] = 0.0f;
}
dropped = sum_of_threads(dropped, partial, lane, group, THREADS / 32);
if (thread_index_in_threadgroup == 0) {
  counts[row] = found;
  error[row] = metal::isfinite(normaliser[row]) ? 1.001f * dropped : NAN;
}
