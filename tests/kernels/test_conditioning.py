"""The kernels at the beginning of a step against their twins, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import DTYPES, each_dtype, each_dtype_and_run
from tolerances import KERNEL_ROUNDING

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Belief, Logits, conditioning, dispatch, reference
from mlx_diffusiongemma.kernels import reference_sampler as sampler

pytestmark = pytest.mark.kernels
EPS = 1e-6
WIDTHS = [1, 33, 264, 2816]


def name_of(dtype):
    return str(dtype).removeprefix("mlx.core.")


def assert_rounded(got, want, dtype):
    """As near as one rounding to `dtype` of numbers computed in float32."""
    assert got.dtype == dtype
    got, want = np.array(got.astype(mx.float32)), np.array(want)
    tolerance = KERNEL_ROUNDING[name_of(dtype)]
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=tolerance, atol=tolerance)


def rows(seed, dtype, *shape):
    return mx.array(np.random.default_rng(seed).normal(size=shape), mx.float32).astype(dtype)


def wide(*arrays):
    return [array.astype(mx.float32) for array in arrays]


def belief(vocabulary, dtype, cap=30.0):
    logits = Logits(rows(5, dtype, 3, vocabulary) * 4, cap=cap, temperature=0.6)
    return Belief(logits, sampler.logit_statistics(logits).normaliser)


@each_dtype_and_run
@pytest.mark.parametrize("parts", [1, 2])
def test_soft_norm(parts, dtype, mode, schedule):
    given = [rows(seed, dtype, 3, 264) for seed in range(parts)]
    weight, scale = rows(7, dtype, 264), mx.array(16.25, dtype)
    launch = conditioning.soft_norm_launch(tuple(given), scale, weight, EPS)
    (got,) = emulated.run(launch, mode, schedule)
    want = reference.soft_norm(wide(*given), *wide(scale, weight), EPS)
    assert_rounded(got, want, dtype)


@each_dtype_and_run
@pytest.mark.parametrize("has_signal", [True, False])
def test_condition(has_signal, dtype, mode, schedule):
    embedded, signal, norm = (
        rows(seed, dtype, *s) for seed, s in enumerate([(3, 264)] * 2 + [(264,)])
    )
    signal, scale = signal if has_signal else None, mx.array(16.25, dtype)
    launch = conditioning.condition_launch(embedded, signal, scale, norm, EPS)
    total, normed = emulated.run(launch, mode, schedule)
    other = None if signal is None else wide(signal)[0]
    want = reference.condition(*wide(embedded), other, *wide(scale, norm), EPS)
    assert_rounded(total, want.residual, dtype)
    again = mx.fast.rms_norm(*wide(total, norm), EPS)  # of the rounded sum
    assert_rounded(normed, again, dtype)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_width(width):
    one, other, weight = (
        rows(1, mx.float32, 2, width),
        rows(2, mx.float32, 2, width),
        mx.ones(width),
    )
    scale = mx.array(3.0)
    (got,) = emulated.run(conditioning.soft_norm_launch((one, other), scale, weight, EPS))
    assert_rounded(got, reference.soft_norm((one, other), scale, weight, EPS), mx.float32)
    both = emulated.run(conditioning.condition_launch(one, other, scale, weight, EPS))
    for part, want in zip(both, reference.condition(one, other, scale, weight, EPS), strict=True):
        assert_rounded(part, want, mx.float32)


@each_dtype_and_run
def test_probabilities_of_a_range(dtype, mode, schedule):
    believed = belief(301, dtype)
    for first, count in ((0, 301), (0, 1), (100, 150), (300, 1)):
        launch = conditioning.probabilities_launch(believed, first, count, dtype)
        (got,) = emulated.run(launch, mode, schedule)
        want = sampler.probabilities(believed, first, count, mx.float32)
        assert_rounded(got, want, dtype)


@each_dtype
def test_ranges_together_sum_to_one(dtype):
    believed = belief(301, dtype, cap=0.0)
    with emulated.forced():
        parts = [
            kernels.probabilities(believed, *each, mx.float32) for each in ((0, 200), (200, 101))
        ]
    sums = sum(mx.sum(part, axis=-1) for part in parts)
    np.testing.assert_allclose(np.array(sums), 1, atol=1e-5)


def test_a_forbidden_token_has_no_probability():
    logits = Logits(mx.array([[0.0, -mx.inf, 0.0]]))
    believed = Belief(logits, sampler.logit_statistics(logits).normaliser)
    (got,) = emulated.run(conditioning.probabilities_launch(believed, 0, 3, mx.float32))
    assert got[0].tolist() == pytest.approx([0.5, 0.0, 0.5])


def test_the_operations_use_the_kernels_and_keep_the_shape():
    logits = Logits(rows(5, mx.float32, 2, 3, 40))
    believed = Belief(logits, sampler.logit_statistics(logits).normaliser)
    x, weight, scale = rows(1, mx.float32, 2, 3, 16), mx.ones(16), mx.array(4.0)
    launched = []

    def run(launch):
        launched.append(launch.kernel.name)
        return emulated.run(launch)

    with dispatch.forced(run):
        assert kernels.probabilities(believed, 8, 16, mx.float32).shape == (2, 3, 16)
        assert kernels.soft_norm([x, x], scale, weight, EPS).shape == x.shape
        assert {part.shape for part in kernels.condition(x, None, scale, weight, EPS)} == {x.shape}
        three = kernels.soft_norm([x, x, x], scale, weight, EPS)
    assert launched == ["probabilities", "soft_norm", "condition"]
    assert_rounded(three, reference.soft_norm([x, x, x], scale, weight, EPS), mx.float32)


@each_dtype
def test_the_trials_pass(dtype, monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    x, weight, scale = mx.zeros((2, 3, 40), dtype), mx.ones(40, dtype), mx.array(4.0, dtype)
    assert dispatch.passes_trial(conditioning._PROBABILITIES, belief(40, dtype), 20, dtype)
    for parts in ((x,), (x, x)):
        assert dispatch.passes_trial(conditioning._SOFT_NORM, parts, scale, weight, EPS)
    for signal in (None, x):
        assert dispatch.passes_trial(conditioning._CONDITION, x, signal, scale, weight, EPS)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_apple_s_compiler_would_take_them(dtype):
    x, weight, scale = mx.zeros((2, 40), dtype), mx.ones(40, dtype), mx.array(4.0, dtype)
    for launch in (
        conditioning.probabilities_launch(belief(40, dtype), 0, 40, dtype),
        conditioning.soft_norm_launch((x, x), scale, weight, EPS),
        conditioning.condition_launch(x, x, scale, weight, EPS),
    ):
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []
