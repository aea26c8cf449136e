"""The gated activation's kernel against its twin, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, RUNS, each_dtype
from tolerances import KERNEL_ROUNDING

from mlx_diffusiongemma.kernels import activation, dispatch, reference

pytestmark = pytest.mark.kernels

INF, NAN = float("inf"), float("nan")
# One number; less than a threadgroup; one more than it; the width of the released experts.
SIZES = [(1, 1), (3, 40), (2, 257), (3, 704)]
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((SIZES[-1], dtype, how) for dtype in DTYPES for how in CHECKED),
    *((SIZES[-1], mx.float32, how) for how in RUNS if how not in CHECKED),
]


def drawn(rows, width, dtype):
    rng = np.random.default_rng(rows)
    return [mx.array(rng.normal(size=(rows, width)) * 4, mx.float32).astype(dtype) for _ in "gu"]


def assert_as_the_twin(got, gate, up):
    want = np.array(reference.geglu(gate.astype(mx.float32), up.astype(mx.float32)))
    assert (got.shape, got.dtype) == (gate.shape, gate.dtype)
    tolerance = KERNEL_ROUNDING[str(got.dtype).removeprefix("mlx.core.")]
    error = 2e-6 * np.nanmax(np.abs(np.where(np.isfinite(want), want, 0)))  # 1 + tanh cancels
    np.testing.assert_allclose(np.array(got.astype(mx.float32)), want, rtol=tolerance, atol=error)


@pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)
def test_two_arrays_and_the_halves_of_one(size, dtype, how):
    gate, up = drawn(*size, dtype)
    (got,) = emulated.run(activation.geglu_launch(gate, up), *how)
    assert_as_the_twin(got, gate, up)
    both = mx.concatenate([gate, up], axis=-1)
    (got,) = emulated.run(activation.geglu_halves_launch(both), *how)
    assert_as_the_twin(got, gate, up)


@each_dtype
def test_numbers_that_are_not_ordinary(dtype):
    gate = mx.array([[0.0, -0.0, INF, -INF, NAN, 1.0, 300.0, -300.0, 1e-7, 2.0]]).astype(dtype)
    up = mx.array([[1.0, 1.0, 1.0, 1.0, 1.0, NAN, 2.0, 2.0, 3.0, INF]]).astype(dtype)
    (got,) = emulated.run(activation.geglu_launch(gate, up))
    assert_as_the_twin(got, gate, up)


def test_shapes_are_kept():
    gate, up = (array.reshape(2, 3, 40) for array in drawn(6, 40, mx.float32))
    with emulated.forced():
        assert_as_the_twin(activation.geglu(gate, up), gate, up)
        halves = activation.geglu_halves(mx.concatenate([gate, up], axis=-1))
    assert_as_the_twin(halves, gate, up)


def test_the_trials_pass(monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    gate, up = drawn(3, 40, mx.bfloat16)
    assert dispatch.passes_trial(activation._GEGLU, gate, up)
    assert dispatch.passes_trial(activation._GEGLU_HALVES, gate)


@pytest.mark.emulator
@each_dtype
@pytest.mark.parametrize("width", [2, 704])
def test_apple_s_compiler_would_take_it(dtype, width):
    launch = activation.geglu_launch(*drawn(2, width, dtype))
    kernel = dispatch.metal_kernel(launch.kernel)
    assert emulator.type_errors(kernel, **launch.arguments()) == []
