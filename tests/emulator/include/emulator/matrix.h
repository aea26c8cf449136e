// simdgroup_matrix: an 8x8 tile that the lanes of a simdgroup hold together, two elements each.
//
// Which lane holds what is Apple's business; this is the map that MLX's own kernels rely on.
// Products accumulate in float whatever the element type.
#pragma once

namespace metal {
namespace tiles {
constexpr int row(int lane) { return (lane / 4 & 4) + lane / 2 % 4; }
constexpr int column(int lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
}  // namespace tiles

template <class T, int Columns = 8, int Rows = 8> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "Metal has 8x8 only");
  vec<T, 2> held;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    int r = tiles::row(lanes::own()), c = tiles::column(lanes::own());
    held[0] = r == c ? diagonal : (T)0;
    held[1] = r == c + 1 ? diagonal : (T)0;
  }
  thread vec<T, 2>& thread_elements() { return held; }
  const thread vec<T, 2>& thread_elements() const { return held; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int C = 8, int R = 8>
inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> m;
  m.held = value;
  return m;
}

namespace tiles {
inline ulong index(int i, ulong stride, ulong2 origin, bool transposed) {
  ulong r = row(lanes::own()), c = column(lanes::own()) + i;
  return transposed ? (origin[1] + c) * stride + origin[0] + r
                    : (origin[1] + r) * stride + origin[0] + c;
}
}  // namespace tiles
template <class T, class P>
inline void simdgroup_load(thread simdgroup_matrix<T>& m, P from, ulong stride = 8,
                           ulong2 origin = {0, 0}, bool transposed = false) {
  for (int i = 0; i < 2; i++) m.held[i] = from[tiles::index(i, stride, origin, transposed)];
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T> m, P to, ulong stride = 8, ulong2 origin = {0, 0},
                            bool transposed = false) {
  for (int i = 0; i < 2; i++) to[tiles::index(i, stride, origin, transposed)] = m.held[i];
}

namespace tiles {
constexpr int second = 16, third = 32;  // where the operands B and C lie in a lane's slot
template <class T>
EMU_UNCHECKED void gather(const unsigned char* operands, int offset, float (*tile)[8]) {
  for (int lane = 0; lane < EMU_LANES; lane++) {
    for (int i = 0; i < 2; i++) {
      tile[row(lane)][column(lane) + i] =
          (float)lanes::load<T>(operands + EMU_SLOT * lane + offset + (int)sizeof(T) * i);
    }
  }
}
template <class A, class B, class C, class D>
EMU_UNCHECKED void multiply_add(const unsigned char* operands, unsigned, unsigned char* results) {
  float a[8][8], b[8][8], c[8][8];
  gather<A>(operands, 0, a);
  gather<B>(operands, second, b);
  gather<C>(operands, third, c);
  for (int lane = 0; lane < EMU_LANES; lane++) {
    for (int i = 0; i < 2; i++) {
      int r = row(lane), n = column(lane) + i;
      float sum = c[r][n];
      for (int k = 0; k < 8; k++) sum += a[r][k] * b[k][n];
      lanes::store<D>(results + EMU_SLOT * lane + (int)sizeof(D) * i, (D)sum);
    }
  }
}
template <class D, class A, class B, class C>
__attribute__((noinline)) EMU_UNCHECKED void run(simdgroup_matrix<D>& d, simdgroup_matrix<A> a,
                                                 simdgroup_matrix<B> b, simdgroup_matrix<C> c,
                                                 EmuSite site) {
  unsigned char operands[48];
  __builtin_memcpy(operands, &a.held, sizeof a.held);
  __builtin_memcpy(operands + second, &b.held, sizeof b.held);
  __builtin_memcpy(operands + third, &c.held, sizeof c.held);
  EmuExchange all = emu_exchange(operands, sizeof operands, site, &multiply_add<A, B, C, D>);
  d.held[0] = lanes::load<D>(all.result);
  d.held[1] = lanes::load<D>(all.result + sizeof(D));
}
}  // namespace tiles

template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(thread simdgroup_matrix<D>& d, simdgroup_matrix<A> a,
                                          simdgroup_matrix<B> b, simdgroup_matrix<C> c,
                                          EMU_SITE("simdgroup_multiply_accumulate")) {
  tiles::run(d, a, b, c, site);
}
template <class D, class A, class B>
inline void simdgroup_multiply(thread simdgroup_matrix<D>& d, simdgroup_matrix<A> a,
                               simdgroup_matrix<B> b, EMU_SITE("simdgroup_multiply")) {
  tiles::run(d, a, b, make_filled_simdgroup_matrix<D>((D)0), site);
}
}  // namespace metal
