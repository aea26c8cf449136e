// Accepts the most certain positions of a canvas while their joint entropy stays within a bound.
//
// Twin: kernels/reference_sampler.py, accept_within_bound.
//
//   in   entropy   float [B, L]   nats; L at most 1024
//        bound     float
//   out  accepted  bool [B, L]    entropies before it, in rising order, sum to at most `bound`
//   template  none
//   grid      a threadgroup for each canvas: L rounded up to a multiple of 32, B
//   memory    8192 bytes of threadgroup memory
//   ties      of equal entropies the lower position comes first
//   NaN       comes last and is never accepted
//   rounding  the sums run in order, as in the twin on a CPU

// Whether position j with entropy x comes before position i with entropy y.
METAL_FUNC bool comes_before(float x, uint j, float y, uint i) {
  if (metal::isnan(x) || metal::isnan(y)) {
    return metal::isnan(y) && (!metal::isnan(x) || j < i);
  }
  return x < y || (x == y && j < i);
}
// @body
uint length = uint(entropy_shape[1]);
uint i = thread_index_in_threadgroup;
uint place = threadgroup_position_in_grid.y * length + i;
threadgroup float given[1024];
threadgroup float sorted[1024];
float own = i < length ? entropy[place] : 0.0f;
given[i] = own;  // those beyond the canvas are not read
threadgroup_barrier(mem_flags::mem_threadgroup);

uint rank = 0;
if (i < length) {
  for (uint j = 0; j < length; j++) rank += comes_before(given[j], j, own, i) ? 1 : 0;
  sorted[rank] = own;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

if (i == 0) {
  float sum = 0.0f;
  for (uint k = 0; k < length; k++) {
    float each = sorted[k];
    sum += each;
    sorted[k] = sum - each;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (i < length) accepted[place] = sorted[rank] <= bound;
