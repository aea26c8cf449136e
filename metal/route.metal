// Chooses the experts of every token and sorts the choices by expert, in one launch.
//
// Twin: kernels/reference.py, route. For up to 512 tokens; more go through choose_experts.metal and
// sort_by_expert.metal.
//
//   in   scores            float, half or bfloat [T, E]   of the router
//        per_expert_scale  float, half or bfloat [E]
//   out  experts           uint [T, K]    best first
//        weights           float [T, K]   shares among the K, times per_expert_scale
//        tokens            uint [T * K]   by slot: the token of a pair
//        sorted_experts    uint [T * K]   by slot: its expert, ascending
//        inverse           uint [T, K]    by pair: its slot
//        offsets           uint [E + 1]   first slot of every expert, and T * K
//   template  E, K (at most 32, at most E), SIMDGROUPS
//   grid      one threadgroup of 32 * SIMDGROUPS threads
//   memory    4 * E * (SIMDGROUPS + 1) bytes of threadgroup memory
//   ties      of equal scores the lower id comes first; pairs of one expert by token
//   NaN       a row with NaN or +inf, or of -inf only, gets NaN weights and K different experts
//   rounding  of exp and of one sum of K numbers; the rest is exact
// @body
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
threadgroup uint counts[SIMDGROUPS * E];
threadgroup uint first[E];
threadgroup uint* own = counts + group * E;
uint2 rows = rows_of(group, SIMDGROUPS, uint(scores_shape[0]));

for (uint e = lane; e < uint(E); e += 32) own[e] = 0;
simdgroup_barrier(mem_flags::mem_threadgroup);
for (uint row = rows.x; row < rows.y; row++) {
  float share;
  uint e = choose_experts<E, K>(scores + row * E, int(lane), share);
  if (lane < uint(K)) {
    experts[row * K + lane] = e;
    weights[row * K + lane] = share * static_cast<float>(per_expert_scale[e]);
    own[e] += 1;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
sum_counts<E>(counts, first, offsets, thread_index_in_threadgroup, SIMDGROUPS);
// A lane reads the experts that it has written itself, which needs no barrier.
place_pairs<E, K>(experts, own, first, tokens, sorted_experts, inverse, lane, rows);
