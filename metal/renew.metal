// Makes the next canvas, and says of the step what the stop rules ask.
//
// Twin: kernels/reference_sampler.py, renew.
//
//   in   accepted         bool [B, L]
//        tokens           int [B, L]    for accepted positions
//        noise            int [B, L]    for the others
//        best             int [B, L]
//        entropy          float [B, L]
//        accepted_before  bool [B, L]   of the step before
//        best_before      int [B, L]
//   out  canvas           int [B, L]
//        summary          float [B, 4]  mean entropy; how many of `best` and of `accepted` have
//                                       changed; how many entropies are no finite numbers
//   template  THREADS
//   grid      a threadgroup of THREADS, a multiple of 32, for each canvas
//   memory    128 bytes of threadgroup memory
//   ties      none
//   NaN       makes the mean NaN, and is counted
//   rounding  the sum of entropies is float, in another order than the twin's
// @body
uint length = uint(entropy_shape[1]);
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
uint first = threadgroup_position_in_grid.x * length;
threadgroup float partial[32];
float own[4] = {0.0f, 0.0f, 0.0f, 0.0f};
for (uint i = thread_index_in_threadgroup; i < length; i += THREADS) {
  uint place = first + i;
  canvas[place] = accepted[place] ? tokens[place] : noise[place];
  own[0] += entropy[place];
  own[1] += best[place] != best_before[place] ? 1.0f : 0.0f;
  own[2] += accepted[place] != accepted_before[place] ? 1.0f : 0.0f;
  own[3] += metal::isfinite(entropy[place]) ? 0.0f : 1.0f;
}
for (uint i = 0; i < 4; i++) {
  float sum = sum_of_threads(own[i], partial, lane, group, THREADS / 32);
  if (thread_index_in_threadgroup == 0) {
    summary[threadgroup_position_in_grid.x * 4 + i] = i == 0 ? sum / float(length) : sum;
  }
}
