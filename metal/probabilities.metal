// The probabilities of a range of tokens.
//
// Twin: kernels/reference_sampler.py, probabilities.
//
//   in   logits       float, half or bfloat [R, V]   as the head wrote them
//        normaliser   float [R]   log of the sum of exp of the scaled logits
//        cap          float   softcap, 0 for none
//        temperature  float
//        first        int     where the range begins
//   out  out          T [R, N]
//   template  T (float, half or bfloat)
//   grid      a thread for each probability: N, R
//   memory    none
//   ties      none
//   NaN       where the logit or its row's normaliser is NaN
//   rounding  once, from float
// @body
uint column = thread_position_in_grid.x;
uint row = thread_position_in_grid.y;
size_t place = size_t(row) * size_t(logits_shape[1]) + size_t(first) + column;
float logit = logit_of(static_cast<float>(logits[place]), cap, temperature);
out[size_t(row) * threads_per_grid.x + column] =
    static_cast<T>(metal::precise::exp(logit - normaliser[row]));
