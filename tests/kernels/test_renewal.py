"""The next canvas and the summary of a step, against its twin and against hand numbers."""

import math

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import RUNS

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import LogitStatistics, dispatch, renewal
from mlx_diffusiongemma.kernels import reference_sampler as reference

pytestmark = pytest.mark.kernels


def arguments(length, seed=0, batch=2):
    rng = np.random.default_rng(seed)
    numbers = [mx.array(rng.integers(0, 4, (batch, length)), mx.int32) for _ in range(6)]
    entropy = mx.array(rng.gamma(0.5, size=(batch, length)), mx.float32)
    statistics = LogitStatistics(entropy, entropy, numbers[2])
    return numbers[0] > 1, numbers[3], numbers[4], statistics, numbers[1] > 1, numbers[5]


def by_hand():
    entropy = mx.array([[0.5, 0.25, 0.0]])
    mask, before = mx.array([[True, False, True]]), mx.array([[True, True, True]])
    statistics = LogitStatistics(entropy, entropy, mx.array([[7, 8, 9]], mx.int32))
    tokens, noise = mx.array([[1, 2, 3]], mx.int32), mx.array([[4, 5, 6]], mx.int32)
    return mask, tokens, noise, statistics, before, mx.array([[7, 0, 0]], mx.int32)


@pytest.mark.parametrize("by", ["kernel", "twin"])
def test_a_canvas_by_hand(by):
    given = by_hand()
    if by == "kernel":
        canvas, summary = emulated.run(renewal.renew_launch(*given))
    else:
        canvas, summary = reference.renew(*given)
    assert canvas.tolist() == [[1, 5, 3]]
    assert summary.tolist() == [[0.25, 2.0, 1.0, 0.0]]


@pytest.mark.parametrize("how", RUNS, ids=str)
@pytest.mark.parametrize("length", [1, 31, 256, 257, 700])
def test_a_canvas_of_any_length(length, how):
    given = arguments(length, seed=length)
    got = emulated.run(renewal.renew_launch(*given), *how)
    want = reference.renew(*given)
    assert got[0].tolist() == want.canvas.tolist()
    np.testing.assert_allclose(np.array(got[1]), np.array(want.summary), rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_finite_number_is_counted_in_its_own_canvas(bad):
    mask, tokens, noise, statistics, *before = arguments(300)
    entropy = np.array(statistics.entropy)
    entropy[1, [3, 299]] = bad
    given = mask, tokens, noise, statistics._replace(entropy=mx.array(entropy)), *before
    for summary in (
        emulated.run(renewal.renew_launch(*given))[1],
        reference.renew(*given).summary,
    ):
        assert summary[:, 3].tolist() == [0, 2]
        assert math.isfinite(summary[0, 0].item())
        assert not math.isfinite(summary[1, 0].item())


def test_the_operation_uses_the_kernel():
    with emulated.forced():
        got = kernels.renew(*arguments(40))
    for one, other in zip(got, reference.renew(*arguments(40)), strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-6)


def test_the_trial_passes(monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    assert dispatch.passes_trial(renewal._RENEW, *arguments(256, batch=1))


@pytest.mark.emulator
@pytest.mark.parametrize("length", [3, 256])
def test_apple_s_compiler_would_take_it(length):
    launch = renewal.renew_launch(*arguments(length, batch=1))
    kernel = dispatch.metal_kernel(launch.kernel)
    assert emulator.type_errors(kernel, **launch.arguments()) == []
