"""The residual stream's kernels against their twins, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
import residual_arguments
from emulated import CHECKED, DTYPES, RUNS, each_dtype
from tolerances import KERNEL_ROUNDING

from mlx_diffusiongemma.kernels import dispatch, reference, residual

pytestmark = pytest.mark.kernels

# rows, width: one row; columns that fill no simdgroup, none of a thread's share; the released width
SIZES = [(1, 8), (5, 40), (3, 256), (7, 264), (2, 2816)]
# All sizes once; two of them in every dtype and order; the released width as compiled for speed.
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((size, dtype, how) for size in (SIZES[1], SIZES[-1]) for dtype in DTYPES for how in CHECKED),
    *((SIZES[-1], mx.float32, how) for how in RUNS if how not in CHECKED),
]
each_case = pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)


def in_float32(arguments):
    """The same numbers, so that the twin's own rounding is out of the comparison."""
    if isinstance(arguments, mx.array):
        return arguments if arguments.dtype == mx.uint32 else arguments.astype(mx.float32)
    if isinstance(arguments, tuple):
        made = [in_float32(part) for part in arguments]
        return type(arguments)(*made) if hasattr(arguments, "_fields") else tuple(made)
    return arguments


def assert_close(got, want, dtype):
    for one, other in zip(got, want, strict=True):
        assert (one.shape, one.dtype) == (other.shape, dtype)
        one, other = np.array(one.astype(mx.float32)), np.array(other)
        tolerance = KERNEL_ROUNDING[str(dtype).removeprefix("mlx.core.")]
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=2e-6 * np.abs(other).max())


@each_case
def test_attention_is_added_as_by_the_twin(size, dtype, how):
    arguments = residual_arguments.attention(*size, dtype)
    *rows, inverse = emulated.run(residual.add_attention_launch(*arguments), *how)
    *want, inverse_wanted = reference.add_attention(*in_float32(arguments))
    assert_close(rows, want, dtype)
    assert inverse.dtype == mx.float32
    tolerance = KERNEL_ROUNDING[str(dtype).removeprefix("mlx.core.")]
    np.testing.assert_allclose(np.array(inverse), np.array(inverse_wanted), rtol=tolerance)


@each_case
def test_rows_are_gathered_as_by_the_twin(size, dtype, how):
    arguments = residual_arguments.gathered(*size, dtype)
    got = emulated.run(residual.gather_normed_launch(*arguments), *how)
    assert_close(got, [reference.gather_normed(*in_float32(arguments))], dtype)


@each_dtype
def test_gathered_rows_are_those_of_the_norm(dtype):
    """Both steps together are MLX's norm and a gather, up to rounding."""
    arguments = residual_arguments.attention(5, 264, dtype)
    _, norm, tokens = residual_arguments.gathered(5, 264, dtype)
    with emulated.forced():
        inputs = residual.add_attention(*arguments)
        norm = norm._replace(inverse_rms=inputs.inverse_rms)
        got = residual.gather_normed(inputs.residual, norm, tokens)
    (added,) = in_float32((inputs.residual,))
    weight = norm.weight.astype(mx.float32)
    want = mx.fast.rms_norm(added, weight, residual_arguments.EPS)[tokens]
    assert_close([got], [want], dtype)


@each_case
def test_the_feed_forward_is_added_as_by_the_twin(size, dtype, how):
    arguments = residual_arguments.feed_forward(*size, dtype)
    got = emulated.run(residual.add_feed_forward_launch(*arguments), *how)
    assert_close(got, reference.add_feed_forward(*in_float32(arguments)), dtype)


@pytest.mark.parametrize("top_k", [1, 8])
def test_any_number_of_experts_is_combined(top_k):
    arguments = residual_arguments.feed_forward(6, 40, mx.float32, top_k)
    got = emulated.run(residual.add_feed_forward_launch(*arguments))
    assert_close(got, reference.add_feed_forward(*arguments), mx.float32)


def test_batches_keep_their_shape():
    x, attended, weights, eps = residual_arguments.attention(6, 40, mx.float32)
    shape = (2, 3, 40)
    with emulated.forced():
        got = residual.add_attention(x.reshape(shape), attended.reshape(shape), weights, eps)
    assert [part.shape for part in got] == [shape, shape, shape, (2, 3)]
    arguments = residual_arguments.feed_forward(6, 40, mx.float32)
    with emulated.forced():
        stream = residual.add_feed_forward(
            arguments[0].reshape(shape), arguments[1].reshape(shape), *arguments[2:]
        )
    assert stream.residual.shape == stream.normed.shape == shape
    assert_close(
        [part.reshape(6, 40) for part in stream],
        reference.add_feed_forward(*arguments),
        mx.float32,
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(bad):
    x, attended, weights, eps = residual_arguments.attention(3, 40, mx.float32)
    attended[1, 7] = bad
    first = (x, attended, weights, eps)
    second = residual_arguments.feed_forward(3, 40, mx.float32)
    second[2][int(second[3].inverse[1, 2].item()), 7] = bad
    for launch, want in (
        (residual.add_attention_launch(*first), reference.add_attention(*first)),
        (residual.add_feed_forward_launch(*second), reference.add_feed_forward(*second)),
    ):
        for one, other in zip(emulated.run(launch), want, strict=True):
            one, other = np.array(one), np.array(other)
            assert not np.isfinite(one[1]).all() or one.ndim == 1  # 1 / inf is a number
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_rows_of_zeros_stay_zeros():
    x, attended, weights, eps = residual_arguments.attention(2, 40, mx.float32)
    launch = residual.add_attention_launch(x * 0, attended * 0, weights, eps)
    *rows, inverse = emulated.run(launch)
    assert not any(np.array(part).any() for part in rows)
    assert inverse.tolist() == pytest.approx([eps**-0.5] * 2)


def test_the_trial_of_both_passes(monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    for dtype in (mx.float32, mx.bfloat16):
        arguments = residual_arguments.attention(4, 40, dtype)
        assert dispatch.passes_trial(residual._ADD_ATTENTION, *arguments)
        arguments = residual_arguments.feed_forward(4, 40, dtype)
        assert dispatch.passes_trial(residual._ADD_FEED_FORWARD, *arguments)
        arguments = residual_arguments.gathered(4, 40, dtype)
        assert dispatch.passes_trial(residual._GATHER_NORMED, *arguments)


@pytest.mark.emulator
@each_dtype
@pytest.mark.parametrize("width", [8, 2816])
def test_apple_s_compiler_would_take_them(dtype, width):
    for launch in (
        residual.add_attention_launch(*residual_arguments.attention(2, width, dtype)),
        residual.add_feed_forward_launch(*residual_arguments.feed_forward(2, width, dtype)),
        residual.gather_normed_launch(*residual_arguments.gathered(2, width, dtype)),
    ):
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []


def test_a_row_gets_threads_in_whole_simdgroups():
    assert [residual.threads_of(width) for width in (1, 256, 257, 2816, 9000)] == [
        *(32, 32, 64, 352, 1024)
    ]
