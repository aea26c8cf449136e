// Functions of the kernels that draw: the numbers that `mx.random.uniform` makes.

METAL_FUNC uint rotated(uint x, uint by) { return (x << by) | (x >> (32 - by)); }

// Threefry 2x32 with 20 rounds (Salmon et al. 2011).
METAL_FUNC uint2 threefry(uint2 key, uint2 x) {
  uint parity = key.x ^ key.y ^ 0x1BD11BDAu;
  x.x += key.x;
  x.y += key.y;
  for (uint round = 0; round < 5; round++) {
    bool even = round % 2 == 0;
    for (uint turn = 0; turn < 4; turn++) {
      uint by = even ? (turn == 0 ? 13 : turn == 1 ? 15 : turn == 2 ? 26 : 6)
                     : (turn == 0 ? 17 : turn == 1 ? 29 : turn == 2 ? 16 : 24);
      x.x += x.y;
      x.y = rotated(x.y, by) ^ x.x;
    }
    x.x += round % 3 == 0 ? key.y : round % 3 == 1 ? parity : key.x;
    x.y += (round % 3 == 0 ? parity : round % 3 == 1 ? key.x : key.y) + round + 1;
  }
  return x;
}

// Number i, from [0, 1), of the `count` from one key: MLX makes words in pairs, one of each half.
METAL_FUNC float random_number(uint2 key, uint i, uint count) {
  uint half_count = (count + 1) / 2;
  uint low = i % half_count;
  uint high = low + half_count;  // none where their number is odd
  uint2 pair = threefry(key, uint2(low, high < count ? high : 0u));
  uint word = i < half_count ? pair.x : pair.y;
  return metal::min(float(word) / 4294967296.0f, 0.99999994f);  // the largest float below 1
}
