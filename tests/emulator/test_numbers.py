"""What the emulated operations compute: collectives, matrices, rounding, unset variables."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import MODES, SCHEDULES, run
from emulator.small_kernels import call, kernel

pytestmark = pytest.mark.emulator
T = "uint t = thread_position_in_grid.x; "
ROW = np.arange(1, 33, dtype=np.float32)
UP, DOWN = np.roll(ROW, 3), np.roll(ROW, -3)
COLLECTIVES = {
    "simd_sum(x[t])": np.full(32, ROW.sum()),
    "simd_max(x[t])": np.full(32, 32),
    "simd_min(int(x[t]))": np.full(32, 1),
    "simd_or(uint(x[t]))": np.full(32, 63),
    "simd_prefix_inclusive_sum(x[t])": np.cumsum(ROW),
    "simd_prefix_exclusive_sum(x[t])": np.cumsum(ROW) - ROW,
    "simd_shuffle(x[t], ushort(31 - t))": ROW[::-1],
    "simd_shuffle_xor(x[t], 5)": ROW[np.arange(32) ^ 5],
    "simd_shuffle_up(x[t], 3)": np.where(np.arange(32) < 3, ROW, UP),
    "simd_shuffle_down(x[t], 3)": np.where(np.arange(32) > 28, ROW, DOWN),
    "simd_shuffle_rotate_down(x[t], 3)": DOWN,
    "simd_shuffle_and_fill_up(x[t], -1.0f, 3)": np.where(np.arange(32) < 3, -1, UP),
    "simd_broadcast(x[t], 9)": np.full(32, 10),
    "float(simd_any(x[t] > 31))": np.ones(32),
    "float(simd_all(x[t] > 1))": np.zeros(32),
    "float(uint(ulong(simd_ballot(x[t] > 30))))": np.full(32, np.float32(0xC0000000)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_collective_operations(schedule):
    lines = "\n".join(
        f"out[t * {len(COLLECTIVES)} + {i}] = {e};" for i, e in enumerate(COLLECTIVES)
    )
    launch = call(32, mx.array(ROW), shapes=[(32, len(COLLECTIVES))])
    (out,) = run(kernel(T + lines), schedule=schedule, **launch)
    for (expression, want), got in zip(COLLECTIVES.items(), np.array(out).T, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=expression)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_matrices_of_a_simdgroup(mode, dtype):
    rng = np.random.default_rng(0)
    a, b = (mx.array(rng.integers(-4, 5, (8, 8))).astype(dtype) for _ in range(2))
    body = """
        simdgroup_matrix<T, 8, 8> ma, mb;
        simdgroup_matrix<float, 8, 8> mc = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
        simdgroup_load(ma, a, 8);
        simdgroup_load(mb, b, 8, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(mc, ma, mb, mc);
        simdgroup_store(mc, out, 8);"""
    launch = call(32, a, b, shapes=[(8, 8)], template=[("T", dtype)])
    (out,) = run(kernel(body, inputs=("a", "b")), mode=mode, **launch)
    a, b = np.array(a.astype(mx.float32)), np.array(b.astype(mx.float32))
    assert np.array_equal(np.array(out), a @ b.T + 1)


@pytest.mark.parametrize(("dtype", "step"), [(mx.float16, 2.0**-10), (mx.bfloat16, 2.0**-7)])
def test_half_precision_is_rounded_after_every_operation(dtype, step):
    body = kernel("out[0] = float(x[0] + x[1] - x[0]);")
    small = mx.array([1.0] + [step * 0.49] * 8).astype(dtype)
    (out,) = run(body, mode="fast", **call(1, small))
    assert out.item() == 0


def test_bfloat_conversion_rounds_to_nearest_even():
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3e38, -1e-40, np.inf, np.nan])
    x = mx.array(values.astype(np.float32))
    body = kernel(T + "out[t] = static_cast<bfloat16_t>(float(x[t]));")
    (out,) = run(body, **call(7, x, dtypes=[mx.bfloat16]))
    assert np.array_equal(
        np.array(out.astype(mx.float32)), np.array(x.astype(mx.bfloat16).astype(mx.float32)), True
    )


def test_mlx_exp_of_a_bfloat_is_rounded_and_that_of_a_float_is_not():
    body = kernel("out[0] = metal::exp(x[0]); out[1] = metal::exp(float(x[0]));")
    (out,) = run(body, **call(1, mx.full((9,), 0.3).astype(mx.bfloat16), shapes=[(2,)]))
    rounded, exact = out.tolist()
    assert exact == pytest.approx(np.exp(np.float32(0.30078125)), rel=1e-6)
    assert 0 < abs(rounded - exact) < 4e-3


def test_a_literal_without_a_suffix_is_a_float():
    (out,) = run(kernel("auto y = 0.1 * x[0]; out[0] = sizeof(y);"), **call(1, mx.ones((9,))))
    assert out.item() == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_that_was_never_set_is_not_zero(mode):
    body = kernel("float v[3]; if (x[0] > 5) v[1] = 0; out[0] = v[1];")
    (out,) = run(body, mode=mode, **call(1, mx.ones((9,))))
    assert out.item() != 0


def test_contraction_rounds_a_product_and_sum_once():
    body = kernel("out[0] = x[0] * x[0] - x[1];")
    x = mx.array([1 + 2.0**-12, 1 + 2.0**-11] + [0.0] * 7)
    results = [run(body, mode=mode, **call(1, x))[0].item() for mode in ("fast", "contracted")]
    assert results == [0, 2.0**-24]


def test_min_and_max_of_a_number_and_nan_are_the_number():
    body = kernel("out[0] = metal::max(x[0], x[1]); out[1] = metal::min(x[1], x[0]);")
    (out,) = run(body, **call(1, mx.array([float("nan"), 2.0] + [0.0] * 7), shapes=[(2,)]))
    assert out.tolist() == [2, 2]
