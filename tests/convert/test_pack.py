"""Slices packed one by one are the tensor packed at once, in every mode."""

import mlx.core as mx
import numpy as np
import pytest
from convert_plans import bits, normal

from mlx_diffusiongemma.convert.pack import pack, to_array, to_bits, unpack
from mlx_diffusiongemma.quantization import Quantization

HOWS = [Quantization(n, group) for n in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
HOWS += [Quantization(4, 32, "mxfp4"), Quantization(8, 32, "mxfp8"), Quantization(4, 16, "nvfp4")]


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_row_slices_join_to_the_whole(how, dtype):
    values = normal(3, 5, 128, dtype=dtype)
    whole = mx.quantize(values, how.group_size, how.bits, mode=how.mode)
    rows = values.reshape(15, 128)
    parts = [pack(rows[start:stop], how) for start, stop in ((0, 1), (1, 8), (8, 15))]
    for at_once, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert b"".join(map(bits, pieces)) == bits(at_once)


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_unpacked_slices_join_to_the_whole(how):
    packed = pack(normal(6, 128), how)
    whole = unpack(packed, how)
    assert whole.dtype == mx.float32
    parts = [unpack([part[row : row + 1] for part in packed], how) for row in range(6)]
    assert mx.array_equal(mx.concatenate(parts), whole)
    assert mx.abs(whole - normal(6, 128).astype(mx.float32)).max() < {2: 2.5, 3: 0.8}.get(
        how.bits, 0.6
    )


def test_unpacking_does_not_round_in_the_scales_dtype():
    """1.0078125 times 3 needs nine bits of mantissa, bfloat16 has eight."""
    weight = mx.full((1, 4), 0x33333333, mx.uint32)
    scales, biases = mx.full((1, 1), 1.0078125, mx.bfloat16), mx.zeros((1, 1), mx.bfloat16)
    assert unpack((weight, scales, biases), Quantization(4, 32))[0, 0].item() == 3 * 1.0078125


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "U32", "U8"])
def test_bits_survive_the_way_through_mlx(name):
    dtype = {
        "BF16": np.uint16,
        "F16": np.float16,
        "F32": np.float32,
        "U32": np.uint32,
        "U8": np.uint8,
    }
    values = np.arange(1, 33).astype(dtype[name]).reshape(4, 8)
    array = to_array(values, name)
    assert (array.dtype == mx.bfloat16) == (name == "BF16")
    np.testing.assert_array_equal(to_bits(array), values)


def test_double_precision_becomes_single():
    assert to_bits(to_array(np.array([[1.5]]), "F64")).dtype == np.float32
