"""Every operation of `kernels` and of MLX that the model calls, on the GPU against the CPU."""

import inspect
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from operations import CASES, Calls, computed
from places import Outputs, Place, on_the_cpu, relative_error
from tolerances import LONG_SUMS, ON_ANOTHER_DEVICE

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import reference
from mlx_diffusiongemma.model.attention import prefill_mask
from mlx_diffusiongemma.quantization import Quantization

DTYPES = (mx.float32, mx.float16, mx.bfloat16)


def name_of(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)


def hold(
    place: Place, calls: Callable[[mx.Dtype], Calls], dtype: mx.Dtype, near: float = 0.0
) -> None:
    """Held against float32 on the CPU, from the same numbers in `dtype`.

    Integers and truths are the same, floats within what `dtype` rounds, or no farther than `near`.
    """
    got = place.outputs(lambda: computed(calls(dtype)))
    want = on_the_cpu(lambda: computed(calls(dtype), wide=True))
    compare(place, got, want, dtype, near)


def compare(place: Place, got: Outputs, want: Outputs, dtype: mx.Dtype, near: float = 0.0) -> None:
    """See `hold`."""
    assert len(got) == len(want) > 0
    worst = 0.0
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        if other.dtype == np.float32:
            if not _is_near(one, other, near):
                worst = max(worst, relative_error(one, other))
        else:
            np.testing.assert_array_equal(one, other, err_msg=f"output {index}")
    place.measured("relative_error", worst)
    assert worst <= ON_ANOTHER_DEVICE[name_of(dtype)]


def _is_near(one: np.ndarray, other: np.ndarray, near: float) -> bool:
    with np.errstate(invalid="ignore"):
        return one.shape == other.shape and bool(np.all(np.abs(one - other) <= near))


@each_dtype
@pytest.mark.parametrize("name", CASES)
def test_an_operation_computes_what_the_cpu_computes(place, name, dtype):
    near = LONG_SUMS.get(name, 0.0) if place.is_gpu else 0.0
    hold(place, CASES[name], dtype, near)


def test_every_operation_has_a_case():
    functions = {name for name in kernels.__all__ if inspect.isfunction(getattr(kernels, name))}
    # Trying MLX's own product is no operation; `gated_products` goes by what it finds.
    operations = functions - {"probe_products"}
    assert set(CASES) == operations, "tests/cuda/operations.py lacks one"


@each_dtype
def test_of_equal_scores_the_lower_expert_comes_first(place, dtype):
    scores = np.zeros((70, 128), np.float32)
    scores[:, 3::5] = 2.0
    (got,) = place.outputs(
        lambda: reference.top_k_experts(mx.array(scores).astype(dtype), mx.ones((128,)), 8)[0]
    )
    assert got.tolist() == 70 * [[3, 8, 13, 18, 23, 28, 33, 38]]


def test_a_sort_by_expert_keeps_the_order_of_tokens(place):
    """Long, and with an expert that has nothing: what a stable sort must not lose."""
    experts = np.random.default_rng(0).integers(0, 127, (5000, 8)).astype(np.uint32)
    tokens, ordered, inverse = place.outputs(lambda: reference.sort_by_expert(mx.array(experts)))
    order = np.argsort(experts.reshape(-1), kind="stable")
    np.testing.assert_array_equal(tokens, order // 8)
    np.testing.assert_array_equal(ordered, experts.reshape(-1)[order])
    np.testing.assert_array_equal(inverse.reshape(-1)[order], np.arange(order.size))


@pytest.mark.parametrize("position", [0, 1024, 100_000])
def test_rotation_at_a_late_position(place, position):
    """In float64 by hand; an angle is as exact as float32 holds the position's multiple."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 2, 3, 16)).astype(np.float32)
    wavelengths = (10_000.0 ** (np.arange(8) / 8)).astype(np.float32)
    (got,) = place.outputs(lambda: reference.rotate(mx.array(x), mx.array(wavelengths), position))
    angles = (position + np.arange(3))[:, None] / wavelengths.astype(np.float64)
    turned = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angles)
    want = np.concatenate([turned.real, turned.imag], axis=-1)
    place.measured("largest_error", np.abs(got - want).max())
    np.testing.assert_allclose(got, want, atol=1e-5 + position * 2.0**-21)


# Queries, keys, the window, the size of a head: both kinds of layers, both passes.
ATTENTION = {
    "sliding, prompt": (64, 96, 40, 256, 8),
    "full, prompt": (64, 96, None, 512, 2),
    "sliding, canvas": (64, 96, 0, 256, 8),
    "full, canvas": (64, 96, 0, 512, 2),
    "one token": (1, 96, None, 512, 2),
}


@each_dtype
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_computes_what_the_cpu_computes(place, name, dtype):
    """A window of 0 stands for a canvas, which sees everything."""
    queries, keys, window, size, kv_heads = ATTENTION[name]

    def calls(dtype: mx.Dtype) -> Calls:
        rng = np.random.default_rng(0)
        drawn = [
            mx.array(rng.normal(size=(1, heads, length, size)) * spread, mx.float32).astype(dtype)
            for heads, length, spread in (
                *((16, queries, 0.1), (kv_heads, keys, 1.0), (kv_heads, keys, 1.0)),
            )
        ]
        mask = None if window == 0 else prefill_mask(queries, keys, window)
        attend = partial(mx.fast.scaled_dot_product_attention, scale=1.0, mask=mask)
        return [(attend, tuple(drawn))]

    hold(place, calls, dtype)


# What converters write, and what of it the GPU has a product for.
PACKINGS = [("affine", 2, 64), ("affine", 3, 64), ("affine", 4, 64), ("affine", 8, 64)]
PACKINGS += [("affine", 4, 32), ("affine", 4, 128), ("mxfp4", 4, 32), ("mxfp8", 8, 32)]
PACKINGS += [("nvfp4", 4, 16)]


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize(("mode", "bits", "group_size"), PACKINGS)
def test_a_packed_product_is_that_of_the_numbers_it_stands_for(place, mode, bits, group_size, rows):
    """Packed on the CPU: the same words for both. Also the other way round, as an expectation."""
    for dtype in place.dtypes():
        error = packed_error(place, Quantization(bits, group_size, mode), rows, dtype)
        place.measured(f"relative_error.{name_of(dtype)}", error)
        assert error <= ON_ANOTHER_DEVICE[name_of(dtype)], dtype


def packed_error(place: Place, how: Quantization, rows: int, dtype: mx.Dtype) -> float:
    rng = np.random.default_rng(0)
    weight, x, probs = (
        mx.array(rng.normal(size=shape), mx.float32).astype(dtype)
        for shape in ((96, 256), (rows, 256), (rows, 96))
    )
    packing = {"mode": how.mode, "bits": how.bits, "group_size": how.group_size}
    packed = mx.quantize(weight, **packing, stream=mx.cpu)
    plain = mx.dequantize(*packed, **packing, dtype=mx.float32, stream=mx.cpu)
    mx.eval(packed, plain, x, probs)
    words, scales, *biases = packed

    def products() -> tuple[mx.array, ...]:
        return tuple(
            mx.quantized_matmul(given, words, scales, *biases, transpose=transpose, **packing)
            for given, transpose in ((x, True), (probs, False))
        )

    numbers = np.array(plain, np.float64)
    wants = [_numbers(x) @ numbers.T, _numbers(probs) @ numbers]
    return max(map(relative_error, place.outputs(products), wants))


def _numbers(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), np.float64)
