// Draws tokens uniformly.
//
// Twin: kernels/reference_sampler.py, noise_tokens.
//
//   in   key         uint [2]
//        vocabulary  int
//   out  tokens      int [N]   below `vocabulary`
//   template  none
//   grid      a thread for each token
//   memory    none
//   ties      none
//   NaN       none
//   rounding  of a random number times the vocabulary, as in the twin
// @body
uint i = thread_position_in_grid.x;
float number = random_number(uint2(key[0], key[1]), i, threads_per_grid.x);
tokens[i] = metal::min(int(number * float(vocabulary)), vocabulary - 1);
