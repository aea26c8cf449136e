// Chooses the experts of every token: the first of two launches for long prompts.
//
// Twin: kernels/reference.py, top_k_experts.
//
//   in   scores            float, half or bfloat [T, E]
//        per_expert_scale  float, half or bfloat [E]
//   out  experts           uint [T, K]    best first
//        weights           float [T, K]   shares among the K, times per_expert_scale
//   template  E, K (at most 32, at most E)
//   grid      a simdgroup for each token, eight to a threadgroup
//   memory    none
//   ties, NaN, rounding  as in route.metal
// @body
uint row = thread_position_in_grid.x / 32;
uint lane = thread_index_in_simdgroup;
float share;
uint e = choose_experts<E, K>(scores + row * E, int(lane), share);
if (lane < uint(K)) {
  experts[row * K + lane] = e;
  weights[row * K + lane] = share * static_cast<float>(per_expert_scale[e]);
}
