// Normalises the heads of queries, keys and values, rotates the first two, and puts heads outside.
//
// Twin: kernels/reference.py, prepare_heads.
//
//   in   queries      T [B, L, H * D]
//        keys         T [B, L, KV * D]
//        values       T [B, L, KV * D]   in layers without: the keys
//        query_norm   float, half or bfloat [D]   weights of the norm of a query's head
//        key_norm     the same                    and of a key's; values have none
//        frequencies  float [D / 2]   wavelength of each pair; infinite where it keeps still
//        offset       int             position of the first row
//        eps          float
//   out  query_heads  T [B, H, L, D]
//        key_heads    T [B, KV, L, D]
//        value_heads  T [B, KV, L, D]
//   template  T (float, half or bfloat), H, KV, D (even)
//   grid      a simdgroup for each head of each row: 32 * (H + 2 * KV), L, B
//   memory    none, and no barrier
//   ties      none
//   NaN       stays in its head
//   rounding  once, from float
// @body
constexpr int PAIRS = D / 2;
constexpr int N = (PAIRS + 31) / 32;
int lane = int(thread_index_in_simdgroup);
uint slot = thread_position_in_grid.x / 32;
bool is_query = slot < uint(H);
bool is_key = !is_query && slot < uint(H + KV);
uint head = is_query ? slot : (slot - H) % KV;
uint heads = is_query ? H : KV;
uint row = thread_position_in_grid.y;
uint rows = threads_per_grid.y;
uint batch = thread_position_in_grid.z;
size_t from = (size_t(batch * rows + row) * heads + head) * D;
size_t to = (size_t(batch * heads + head) * rows + row) * D;

// A lane holds the pairs lane, lane + 32, ...: numbers p and p + D / 2 of the head.
float first[N];
float second[N];
float squares = 0.0f;
for (int i = 0; i < N; i++) {
  int p = lane + 32 * i;
  first[i] = 0.0f;
  second[i] = 0.0f;
  if (p < PAIRS) {
    size_t place = from + p;
    first[i] = static_cast<float>(
        is_query ? queries[place] : is_key ? keys[place] : values[place]);
    place += PAIRS;
    second[i] = static_cast<float>(
        is_query ? queries[place] : is_key ? keys[place] : values[place]);
  }
  squares += first[i] * first[i] + second[i] * second[i];
}
float scale = metal::precise::rsqrt(simd_sum(squares) / float(D) + eps);

for (int i = 0; i < N; i++) {
  int p = lane + 32 * i;
  if (p < PAIRS) {
    float x = first[i] * scale;
    float y = second[i] * scale;
    if (is_query || is_key) {
      x *= static_cast<float>(is_query ? query_norm[p] : key_norm[p]);
      y *= static_cast<float>(is_query ? query_norm[p + PAIRS] : key_norm[p + PAIRS]);
      float angle = float(offset + int(row)) * (1.0f / frequencies[p]);
      float cosine = metal::precise::cos(angle);
      float sine = metal::precise::sin(angle);
      float turned = x * cosine - y * sine;
      y = x * sine + y * cosine;
      x = turned;
    }
    device T* heads_out = is_query ? query_heads : is_key ? key_heads : value_heads;
    heads_out[to + p] = static_cast<T>(x);
    heads_out[to + p + PAIRS] = static_cast<T>(y);
  }
}
