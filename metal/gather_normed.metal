// Rows of the residual, normalised, in the order in which the experts take them.
//
// Twin: kernels/reference.py, gather_normed.
//
//   in   rows         T [R, D]
//        inverse_rms  float [R]   of each row
//        weight       float, half or bfloat [D]   of the norm
//        tokens       uint [P]    which row goes to each place
//   out  out          T [P, D]
//   template  T (float, half or bfloat)
//   grid      a thread for each number: D, P
//   memory    none
//   ties      none
//   NaN       stays in its row
//   rounding  once, from float
// @body
uint column = thread_position_in_grid.x;
uint place = thread_position_in_grid.y;
uint row = tokens[place];
size_t width = threads_per_grid.x;
float normed = static_cast<float>(rows[row * width + column]) * inverse_rms[row];
out[place * width + column] = static_cast<T>(normed * static_cast<float>(weight[column]));
