// gelu(gate) * up, from two arrays or from the two halves of each row of one.
//
// Twin: kernels/reference.py, geglu. GELU is the tanh form.
//
//   in   gate   T [R, F], or T [R, 2 * F] with the gates first
//        up     T [R, F], or the same array as `gate`
//   out  out    T [R, F]
//   template  T (float, half or bfloat), F, STRIDE between the rows of the inputs, OFFSET of `up` in them
//   grid      a thread for each number: F, R
//   memory    none
//   ties      none
//   NaN       where gate or up is NaN, or gate is -inf
//   rounding  once, from float
// @body
uint column = thread_position_in_grid.x;
uint row = thread_position_in_grid.y;
size_t place = size_t(row) * STRIDE + column;
float g = static_cast<float>(gate[place]);
float u = static_cast<float>(up[place + OFFSET]);
float inner = 0.7978845608028654f * (g + 0.044715f * g * g * g);
out[size_t(row) * F + column] = static_cast<T>(0.5f * g * (1.0f + metal::precise::tanh(inner)) * u);
