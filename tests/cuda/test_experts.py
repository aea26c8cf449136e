"""Products with experts at the row counts of a canvas, of a prompt's chunk, and beyond both.

2,048 rows are 256 tokens with 8 experts each, 16,384 are 2,048 tokens; 40,002 is above 2 ** 15 and
divides by nothing that a tile could be.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from places import Place
from tolerances import ON_ANOTHER_DEVICE

from mlx_diffusiongemma.kernels import Routing
from mlx_diffusiongemma.model.experts import ExpertLinear, QuantizedExpertLinear

ROWS = (2_048, 16_384, 40_002)
SIZES = {"gate_up": (2816, 1408), "down": (704, 2816)}  # of the released model
SMALL_SIZES = {"gate_up": (64, 48), "down": (64, 80)}
GROUP_SIZE = 64
KINDS = {"4 bits": 4, "8 bits": 8, "not packed": None}
Product = Callable[[mx.array, Routing], mx.array]


def sorted_experts(rows: int, count: int) -> np.ndarray:
    """Ascending: one expert with nothing, one with a single row, one with a quarter of them."""
    rng = np.random.default_rng(rows)
    drawn = rng.choice(np.r_[1, 4:count], size=rows - 1 - rows // 4)
    return np.sort(np.r_[0, np.full(rows // 4, 3), drawn]).astype(np.uint32)


def routing_of(experts: np.ndarray) -> Routing:
    """Rows that lie in the order of their experts already."""
    slots = mx.arange(len(experts), dtype=mx.uint32)
    ends = np.searchsorted(experts, np.arange(experts.max() + 2)).astype(np.uint32)
    given = mx.array(experts)
    return Routing(given[:, None], mx.ones((len(experts), 1)), slots, given, slots, mx.array(ends))


def made(
    inputs: int, outputs: int, count: int, bits: int | None, dtype
) -> tuple[Product, mx.array]:
    """The module with random weights, and the float32 numbers that it multiplies by."""
    shape = (count, outputs, inputs)
    weight = mx.random.normal(shape, key=mx.random.key(1)) * inputs**-0.5
    weight = weight.astype(dtype)
    if bits is None:
        plain = ExpertLinear(inputs, outputs, count)
        plain.weight = weight
        return plain, weight.astype(mx.float32)
    packed = QuantizedExpertLinear(weight, GROUP_SIZE, bits, "affine")
    parts = packed.weight, packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    return packed, mx.dequantize(*parts, group_size=GROUP_SIZE, bits=bits)


def dense(x: mx.array, experts: np.ndarray, weight: mx.array) -> mx.array:
    """One ordinary product for each expert, in float32."""
    ends = np.searchsorted(experts, np.arange(weight.shape[0]), side="right")
    pieces, start = [], 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            pieces.append(x[start:end].astype(mx.float32) @ weight[expert].T)
        start = end
    return mx.concatenate(pieces)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("part", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_experts_compute_the_dense_product(place, kind, part, rows):
    error = error_of(place, KINDS[kind], part, rows)
    place.measured("relative_error", error)
    dtype = "bfloat16" if place.is_gpu else "float32"
    assert error <= ON_ANOTHER_DEVICE[dtype]


def error_of(place: Place, bits: int | None, part: str, rows: int) -> float:
    inputs, outputs = (SIZES if place.is_gpu else SMALL_SIZES)[part]
    count = 128 if place.is_gpu else 8
    dtype = mx.bfloat16 if place.is_gpu else mx.float32
    experts = sorted_experts(rows, count)
    with place.default():
        module, weight = made(inputs, outputs, count, bits, dtype)
        x = mx.random.normal((rows, inputs), key=mx.random.key(0)).astype(dtype)
        mx.eval(weight, x)
        want = dense(x, experts, weight)
        got = module(x, routing_of(experts))
        assert (got.shape, got.dtype) == ((rows, outputs), dtype)
        difference = mx.max(mx.abs(got.astype(mx.float32) - want))
        error = (difference / mx.max(mx.abs(want))).item()
    return error if np.isfinite(error) else float("inf")
