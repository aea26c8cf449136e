// Draws a token for each row of logits from one random number: where the sum of probabilities passes it.
//
// Twin: kernels/reference_sampler.py, draw_tokens.
//
//   in   logits       float, half or bfloat [R, V]   as the head wrote them
//        normaliser   float [R]   log of the sum of exp of the scaled logits
//        best         int [R]     the likeliest token
//        key          uint [2]
//        cap          float   softcap, 0 for none
//        temperature  float
//   out  tokens       int [R]
//   template  THREADS
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    256 bytes of threadgroup memory
//   ties      none: a token without probability is never drawn
//   NaN       a row with NaN gives `best`, which is a token
//   rounding  the sum is float and runs in another order than the twin's: of numbers as close to a
//             border as that is off, another token may come. Where rounding leaves the whole sum
//             below the number, `best` is drawn
// @body
constexpr int EACH = 8;
int vocabulary = logits_shape[1];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint row = threadgroup_position_in_grid.x;
threadgroup float sums[32];
threadgroup int places[32];

float number = random_number(uint2(key[0], key[1]), row, uint(logits_shape[0]));
float before = 0.0f;
int found = vocabulary;
for (int block = 0; block < vocabulary && found == vocabulary; block += THREADS * EACH) {
  int start = block + int(thread_index_in_threadgroup) * EACH;
  float weights[EACH];
  float own = 0.0f;
  for (int e = 0; e < EACH; e++) {
    weights[e] = 0.0f;
    if (start + e < vocabulary) {
      float raw = static_cast<float>(logits[size_t(row) * vocabulary + start + e]);
      weights[e] = metal::precise::exp(logit_of(raw, cap, temperature) - normaliser[row]);
    }
    own += weights[e];
  }
  float sum = simd_prefix_exclusive_sum(own);
  own = simd_sum(own);
  if (lane == 0) sums[group] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float of_group = lane < THREADS / 32 ? sums[lane] : 0.0f;
  float groups_before = simd_prefix_exclusive_sum(of_group);
  sum += before + simd_broadcast(groups_before, ushort(group));
  before += simd_sum(of_group);

  int place = vocabulary;
  for (int e = 0; e < EACH; e++) {
    sum += weights[e];
    if (place == vocabulary && weights[e] > 0.0f && sum > number) place = start + e;
  }
  place = simd_min(place);
  if (lane == 0) places[group] = place;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  found = simd_min(lane < THREADS / 32 ? places[lane] : vocabulary);
}
if (thread_index_in_threadgroup == 0) tokens[row] = found == vocabulary ? best[row] : found;
