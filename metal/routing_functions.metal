// Functions of the routing kernels: the best experts of a row, and a counting sort of the choices.
//
// Letters: E experts, K experts per token, T tokens. A pair is one of the T * K choices; its slot is
// where it lies when the pairs are sorted by expert, those of one expert by token.

// Of the scores that come after (`last`, `last_id`), falling, ties by rising id: the first. One lane
// of the simdgroup holds those of the experts lane, lane + 32, ...; none of them is NaN, and the
// places beyond E hold -inf, so that they come after all experts.
template <int E, int N>
METAL_FUNC int next_best(thread const float (&scores)[N], int lane, float last, int last_id,
                         thread float& score) {
  float best = -INFINITY;
  int id = E;  // none yet
  for (int i = 0; i < N; i++) {
    int e = lane + 32 * i;
    bool after = scores[i] < last || (scores[i] == last && e > last_id);
    if (after && (id == E || scores[i] > best)) {
      best = scores[i];
      id = e;
    }
  }
  score = simd_max(best);
  return simd_min(best == score ? id : E);
}

// Lane k < K gets the k-th best expert of a row of E scores, and its share among the K.
// A row that holds NaN or +inf, or only -inf, gets NaN shares and still K different experts.
template <int E, int K, typename Row>
METAL_FUNC int choose_experts(Row row, int lane, thread float& share) {
  constexpr int N = (E + 31) / 32;
  float scores[N];
  bool broken = false;
  for (int i = 0; i < N; i++) {
    int e = lane + 32 * i;
    float score = e < E ? static_cast<float>(row[e]) : -INFINITY;
    bool is_nan = metal::isnan(score);
    broken = broken || is_nan;
    scores[i] = is_nan ? -INFINITY : score;
  }
  broken = simd_any(broken);
  float last = INFINITY, best = 0.0f, own = 0.0f, total = 0.0f;
  int id = -1, chosen = 0;
  for (int k = 0; k < K; k++) {
    float score;
    id = next_best<E>(scores, lane, last, id, score);
    last = score;
    best = k == 0 ? score : best;
    float weight = metal::precise::exp(score - best);
    total += weight;
    if (lane == k) {
      own = weight;
      chosen = id;
    }
  }
  share = broken ? NAN : own / total;
  return chosen;
}

// The rows that a simdgroup deals with, from x to before y: equal shares in order, so that its pairs
// stay in order. The last ones may be empty, with y below x.
METAL_FUNC uint2 rows_of(uint simdgroup, uint simdgroups, uint rows) {
  uint share = (rows + simdgroups - 1) / simdgroups;
  uint begin = simdgroup * share;
  return uint2(begin, metal::min(begin + share, rows));
}

// In: counts[g * E + e], how many pairs of expert e the rows of simdgroup g have.
// Out: counts[g * E + e], how many the simdgroups before g have; first[e], the first slot of e.
template <int E>
METAL_FUNC void sum_counts(threadgroup uint* counts, threadgroup uint* first, device uint* offsets,
                           uint thread_index, uint simdgroups) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = thread_index; e < uint(E); e += 32 * simdgroups) {
    uint sum = 0;
    for (uint g = 0; g < simdgroups; g++) {
      uint count = counts[g * E + e];
      counts[g * E + e] = sum;
      sum += count;
    }
    first[e] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 32) {
    uint before = 0;
    for (uint start = 0; start < uint(E); start += 32) {
      uint e = start + thread_index;
      uint count = e < uint(E) ? first[e] : 0;
      uint slot = before + simd_prefix_exclusive_sum(count);
      if (e < uint(E)) {
        first[e] = slot;
        offsets[e] = slot;
      }
      before = simd_broadcast(slot + count, 31);
    }
    if (thread_index == 0) offsets[E] = before;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Give each pair of the rows its slot. `counts` are those of the own simdgroup.
template <int E, int K, typename Experts>
METAL_FUNC void place_pairs(Experts experts, threadgroup uint* counts, threadgroup uint* first,
                            device uint* tokens, device uint* sorted_experts, device uint* inverse,
                            uint lane, uint2 rows) {
  for (uint row = rows.x; row < rows.y; row++) {
    if (lane < uint(K)) {  // the experts of a row differ, so that no two lanes meet
      uint pair = row * K + lane;
      uint e = experts[pair];
      uint slot = first[e] + counts[e];
      counts[e] += 1;
      tokens[slot] = row;
      sorted_experts[slot] = e;
      inverse[pair] = slot;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
