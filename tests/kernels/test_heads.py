"""The kernel that prepares heads against its twin, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, RUNS, each_dtype
from head_arguments import EPS, arguments
from tolerances import KERNEL_ROUNDING

from mlx_diffusiongemma.kernels import dispatch, heads, reference

pytestmark = pytest.mark.kernels

# batch, rows, heads, key-value heads, width of a head: one row; pairs that fill no simdgroup or no
# multiple of one; heads that fill no threadgroup; the two shapes of the released model.
SIZES = [
    (1, 1, 1, 1, 8),
    (2, 3, 4, 2, 32),
    (1, 5, 3, 1, 80),
    (1, 2, 16, 8, 256),
    (1, 2, 16, 2, 512),
]
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((SIZES[1], dtype, how) for dtype in DTYPES for how in CHECKED),
    *((SIZES[-1], dtype, RUNS[0]) for dtype in DTYPES),
    *((SIZES[-1], mx.float32, how) for how in RUNS if how not in CHECKED),
]


def assert_as_the_twin(got, given):
    queries, keys, values, weights, offset, eps = given
    exact = [x if x is None else x.astype(mx.float32) for x in (queries, keys, values)]
    in_float32 = reference.HeadWeights(*(x.astype(mx.float32) for x in weights))
    want = reference.prepare_heads(*exact, in_float32, offset, eps)
    for one, other in zip(got, want, strict=True):
        assert (one.shape, one.dtype) == (other.shape, queries.dtype)
        other = np.array(other)
        np.testing.assert_allclose(
            np.array(one.astype(mx.float32)),
            other,
            rtol=KERNEL_ROUNDING[str(one.dtype).removeprefix("mlx.core.")],
            atol=1e-5 * np.nanmax(np.abs(other)),  # rotation cancels
        )


@pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_heads_are_prepared_as_by_the_twin(size, dtype, how, shared):
    given = arguments(*size, dtype, shared=shared)
    assert_as_the_twin(emulated.run(heads.prepare_heads_launch(*given), *how), given)


@pytest.mark.parametrize("offset", [0, 1, 1023, 70_001])
def test_positions_far_into_a_prompt(offset):
    given = arguments(1, 3, 2, 1, 32, mx.float32, offset=offset)
    assert_as_the_twin(emulated.run(heads.prepare_heads_launch(*given)), given)


def test_pairs_with_an_infinite_wavelength_keep_still():
    queries, keys, values, weights, _, eps = arguments(1, 3, 2, 1, 32, mx.float32)
    still = weights._replace(frequencies=mx.full((16,), float("inf")))
    far, near = (
        emulated.run(heads.prepare_heads_launch(queries, keys, values, still, offset, eps))
        for offset in (0, 5000)
    )
    for one, other in zip(far, near, strict=True):
        assert mx.array_equal(one, other)
    assert_as_the_twin(near, (queries, keys, values, still, 5000, EPS))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_head(bad):
    given = arguments(1, 3, 4, 2, 32, mx.float32)
    for array in given[:3]:
        array[0, 1, 40] = bad  # in the second head
    got = emulated.run(heads.prepare_heads_launch(*given))
    for part in got:
        broken = ~np.isfinite(np.array(part)).all(axis=-1)
        assert np.argwhere(broken).tolist() == [[0, 1, 1]]
    assert_as_the_twin(got, given)


def test_through_the_package():
    given = arguments(2, 3, 4, 2, 32, mx.float32)
    with emulated.forced():
        assert_as_the_twin(heads.prepare_heads(*given), given)


def test_the_trial_passes_and_does_not_depend_on_the_position(monkeypatch):
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    launched = []

    def launch(request):
        launched.append(request.kernel.name)
        return emulated.run(request, "fast")

    monkeypatch.setattr(dispatch, "_launcher", launch)
    for shared in (False, True):
        queries, keys, values, weights, _, eps = arguments(
            1, 3, 4, 2, 32, mx.float16, shared=shared
        )
        for offset in (0, 1, 2):
            heads.prepare_heads(queries, keys, values, weights, offset, eps)
    assert len(launched) == 2 * (1 + 3)
    assert list(dispatch._trials.values()) == [True, True]


@pytest.mark.emulator
@each_dtype
@pytest.mark.parametrize("size", [SIZES[0], SIZES[-1]])
def test_apple_s_compiler_would_take_it(dtype, size):
    launch = heads.prepare_heads_launch(*arguments(*size, dtype))
    kernel = dispatch.metal_kernel(launch.kernel)
    assert emulator.type_errors(kernel, **launch.arguments()) == []
