"""Searched scales and biases: MLX's layout, never worse than rounding to nearest, often better."""

import mlx.core as mx
import numpy as np
import pytest
from convert_plans import bits, normal

from mlx_diffusiongemma.convert.pack import pack, unpack
from mlx_diffusiongemma.convert.search import pack_codes, pack_searched
from mlx_diffusiongemma.quantization import Quantization

BITS = (2, 3, 4, 5, 6, 8)
ROWS = 48


def heavy_tailed() -> mx.array:
    return mx.array(np.random.default_rng(1).standard_t(3, (ROWS, 128)).astype(np.float32))


VALUES = {
    "normal": normal(ROWS, 128).astype(mx.float32) * 0.02,
    "heavy": heavy_tailed() * 0.02,
    "uniform": mx.array(np.random.default_rng(2).uniform(-1, 1, (ROWS, 128)).astype(np.float32)),
    "positive": mx.abs(heavy_tailed()) + 3,
    "outlier": mx.where(mx.arange(128) % 64 == 5, 50.0, normal(ROWS, 128).astype(mx.float32)),
    "zeros": mx.zeros((ROWS, 128)),
    "constant": mx.full((ROWS, 128), -0.3),
    "two values": mx.where(mx.arange(ROWS * 128).reshape(ROWS, 128) % 3 == 0, 1e-3, -2e-3),
    "tiny": normal(ROWS, 128).astype(mx.float32) * 1e-30,
    "huge": normal(ROWS, 128).astype(mx.float32) * 1e17,
}


def squared_errors(values: mx.array, packed: tuple[mx.array, ...], how: Quantization) -> np.ndarray:
    """Per group, in float64, from the numbers as they are in the file."""
    difference = np.array(unpack(packed, how), np.float64) - np.array(values.astype(mx.float32))
    return np.square(difference).reshape(ROWS, -1, how.group_size).sum(-1)


@pytest.mark.parametrize("n", BITS)
def test_codes_lie_where_mlx_reads_them(n):
    codes = np.random.default_rng(n).integers(0, 2**n, (5, 128))
    words = pack_codes(mx.array(codes), n)
    assert words.shape == (5, 128 * n // 32) and words.dtype == mx.uint32
    ones, zeros = mx.ones((5, 2)), mx.zeros((5, 2))
    read = mx.dequantize(words, ones, zeros, group_size=64, bits=n)
    np.testing.assert_array_equal(np.array(read), codes)


def test_codes_are_one_stream_of_bits():
    """Three bits each, by hand: the eleventh code has two bits in one word and one in the next."""
    codes = mx.array([[0] * 10 + [5] + [1] + [0] * 20])
    assert pack_codes(codes, 3).tolist() == [[0b01 << 30, 0b1 | 1 << 1, 0]]


@pytest.mark.parametrize("n", BITS)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("group", [32, 64])
def test_no_group_becomes_worse(kind, n, group):
    how = Quantization(n, group)
    values = VALUES[kind].astype(mx.bfloat16)
    searched, nearest = pack_searched(values, how), pack(values, how)
    assert [part.dtype for part in searched] == [part.dtype for part in nearest]
    assert [part.shape for part in searched] == [part.shape for part in nearest]
    before, after = squared_errors(values, nearest, how), squared_errors(values, searched, how)
    assert np.isfinite(after).all()
    assert (after <= before).all()


@pytest.mark.parametrize(
    ("kind", "n", "removed"),
    [("normal", 2, 0.28), ("normal", 3, 0.18), ("normal", 4, 0.12), ("normal", 8, 0.35)]
    + [("heavy", 2, 0.2), ("heavy", 3, 0.15), ("heavy", 4, 0.1), ("heavy", 8, 0.45)],
)
def test_searching_removes_squared_error(kind, n, removed):
    how = Quantization(n, 64)
    values = VALUES[kind].astype(mx.bfloat16)
    before = squared_errors(values, pack(values, how), how).sum()
    after = squared_errors(values, pack_searched(values, how), how).sum()
    assert 1 - after / before > removed


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_slices_join_to_the_whole(dtype):
    how = Quantization(4, 64)
    values = VALUES["normal"].astype(dtype)
    whole = pack_searched(values, how)
    parts = [pack_searched(values[start : start + 16], how) for start in range(0, ROWS, 16)]
    for at_once, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert b"".join(map(bits, pieces)) == bits(at_once)


def test_zeros_stay_zeros():
    how = Quantization(4, 64)
    assert not unpack(pack_searched(VALUES["zeros"].astype(mx.bfloat16), how), how).any()


@pytest.mark.parametrize(
    "how", [Quantization(4, 32, "mxfp4"), Quantization(4, 16, "nvfp4")], ids=str
)
def test_floating_point_modes_are_rounded_to_nearest(how):
    values = normal(4, 64)
    for searched, nearest in zip(pack_searched(values, how), pack(values, how), strict=True):
        assert mx.array_equal(searched, nearest)
