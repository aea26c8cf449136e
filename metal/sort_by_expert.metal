// Sorts the choices of all tokens by expert: the second of two launches for long prompts.
//
// Twin: kernels/reference.py, sort_by_expert and expert_offsets. A stable counting sort, without
// atomics: each simdgroup counts and later places a run of tokens.
//
//   in   experts           uint [T, K]    different ones in a row, each below E
//   out  tokens            uint [T * K]   by slot: the token of a pair
//        sorted_experts    uint [T * K]   by slot: its expert, ascending
//        inverse           uint [T, K]    by pair: its slot
//        offsets           uint [E + 1]   first slot of every expert, and T * K
//   template  E, K (at most 32), SIMDGROUPS
//   grid      one threadgroup of 32 * SIMDGROUPS threads
//   memory    4 * E * (SIMDGROUPS + 1) bytes of threadgroup memory
//   ties      pairs of one expert by token
// @body
uint lane = thread_index_in_simdgroup;
uint group = simdgroup_index_in_threadgroup;
threadgroup uint counts[SIMDGROUPS * E];
threadgroup uint first[E];
threadgroup uint* own = counts + group * E;
uint2 rows = rows_of(group, SIMDGROUPS, uint(experts_shape[0]));

for (uint e = lane; e < uint(E); e += 32) own[e] = 0;
simdgroup_barrier(mem_flags::mem_threadgroup);
for (uint row = rows.x; row < rows.y; row++) {
  if (lane < uint(K)) own[experts[row * K + lane]] += 1;
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
sum_counts<E>(counts, first, offsets, thread_index_in_threadgroup, SIMDGROUPS);
place_pairs<E, K>(experts, own, first, tokens, sorted_experts, inverse, lane, rows);
