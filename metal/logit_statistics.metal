// Entropy, normaliser and best token of every row of logits, in one reading.
//
// Twin: kernels/reference_sampler.py, logit_statistics.
//
//   in   logits       float, half or bfloat [R, V]   as the head wrote them
//        cap          float   softcap, 0 for none
//        temperature  float
//   out  entropy      float [R]   nats, of softmax of the softcapped logits over the temperature
//        normaliser   float [R]   log of the sum of their exp
//        best         int [R]     index of the largest
//   template  THREADS
//   grid      a threadgroup of THREADS, a multiple of 32, for each row
//   memory    512 bytes of threadgroup memory
//   ties      of equal logits the lower index is best; rounding after the softcap can make ties
//   NaN       a row with NaN or +inf, or of -inf only, has entropy NaN; -inf else adds nothing; best is
//             the largest of what is above -inf, 0 if nothing is
//   rounding  all in float; sums over threads, so in another order than the twin

// Of a part of a row: its largest logit and where, and over x the sums of exp(x - largest) and of
// (x - largest) * exp(x - largest). The entropy is log(sum) - moment / sum.
struct Part {
  float largest;
  float sum;
  float moment;
  int at;
};

// The sums of `part` when `largest`, which is not smaller, is taken for its largest.
METAL_FUNC Part moved(Part part, float largest) {
  if (part.sum == 0.0f) return part;  // nothing in it, and -inf - -inf is NaN
  float change = part.largest - largest;
  float factor = metal::precise::exp(change);
  part.moment = (part.moment + change * part.sum) * factor;
  part.sum *= factor;
  return part;
}

METAL_FUNC Part joined(Part a, Part b) {
  bool first = a.largest > b.largest || (a.largest == b.largest && a.at < b.at);
  Part result;
  result.largest = first ? a.largest : b.largest;
  result.at = first ? a.at : b.at;
  a = moved(a, result.largest);
  b = moved(b, result.largest);
  result.sum = a.sum + b.sum;
  result.moment = a.moment + b.moment;
  return result;
}

// The parts of all lanes of a simdgroup together.
METAL_FUNC Part joined_lanes(Part part) {
  for (ushort distance = 16; distance > 0; distance /= 2) {
    Part other;
    other.largest = simd_shuffle_xor(part.largest, distance);
    other.sum = simd_shuffle_xor(part.sum, distance);
    other.moment = simd_shuffle_xor(part.moment, distance);
    other.at = simd_shuffle_xor(part.at, distance);
    part = joined(part, other);
  }
  return part;
}
// @body
int vocabulary = logits_shape[1];
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint row = threadgroup_position_in_grid.x;
threadgroup float largest[32];
threadgroup float sums[32];
threadgroup float moments[32];
threadgroup int places[32];

Part part;
part.largest = -INFINITY;
part.sum = 0.0f;
part.moment = 0.0f;
part.at = vocabulary;
for (int i = int(thread_index_in_threadgroup); i < vocabulary; i += THREADS) {
  float raw = static_cast<float>(logits[size_t(row) * vocabulary + i]);
  float x = logit_of(raw, cap, temperature);
  if (x > part.largest) {
    part = moved(part, x);
    part.largest = x;
    part.at = i;
  }
  if (x != -INFINITY) {
    float below = x - part.largest;
    float weight = metal::precise::exp(below);
    part.sum += weight;
    part.moment += below * weight;
  }
}

part = joined_lanes(part);
if (lane == 0) {
  largest[group] = part.largest;
  sums[group] = part.sum;
  moments[group] = part.moment;
  places[group] = part.at;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (group == 0) {
  bool used = lane < THREADS / 32;
  part.largest = used ? largest[lane] : -INFINITY;
  part.sum = used ? sums[lane] : 0.0f;
  part.moment = used ? moments[lane] : 0.0f;
  part.at = used ? places[lane] : vocabulary;
  part = joined_lanes(part);
  if (lane == 0) {
    float log_sum = metal::precise::log(part.sum);
    entropy[row] = log_sum - part.moment / part.sum;
    normaliser[row] = part.largest + log_sum;
    best[row] = part.at == vocabulary ? 0 : part.at;
  }
}
