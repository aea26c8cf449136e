"""MLX's rules for kernels, as the emulator hands them on: signature, inputs, launch, results."""

import mlx.core as mx
import numpy as np
import pytest

from emulator import MODES, run
from emulator.capture import capture
from emulator.small_kernels import call, kernel

pytestmark = pytest.mark.emulator
NUMBERS = [mx.uint8, mx.int8, mx.uint16, mx.int16, mx.uint32, mx.int32, mx.uint64, mx.int64]
DTYPES = [mx.bool_, *NUMBERS, mx.float16, mx.bfloat16, mx.float32]


def source(body, *inputs, names=("x",)):
    return capture(kernel(body, inputs=names), **call(4, *inputs)).source


def test_the_source_is_mlx_own():
    seen = source("out[0] = a[0] + b[0] + c;", mx.ones((8,)), mx.ones((7,)), 2.0, names="abc")
    assert "const device float* a [[buffer(0)]]" in seen
    assert "const constant float* b [[buffer(1)]]" in seen
    assert "const constant float& c [[buffer(2)]]" in seen


def test_shapes_are_handed_over_when_the_body_names_them():
    assert "x_shape [[buffer(1)]]" in source("out[0] = x[0]; // x_shape", mx.ones((9,)))
    body = kernel(
        "out[0] = x_shape[0]; out[1] = x_shape[1]; out[2] = x_ndim; out[3] = x_strides[0];"
    )
    (out,) = run(body, **call(1, mx.ones((3, 5)), shapes=[(4,)]))
    assert out.tolist() == [3, 5, 2, 5]


STRIDED = [
    mx.arange(24).astype(mx.float32).reshape(4, 6).T,
    mx.arange(24).astype(mx.float32).reshape(4, 6)[::2, 1::2],
    mx.broadcast_to(mx.arange(3).astype(mx.float32), (4, 3)),
    mx.arange(48).astype(mx.bfloat16).reshape(2, 4, 6).swapaxes(0, 2),
]


@pytest.mark.parametrize("array", STRIDED, ids=lambda array: str(array.shape))
def test_inputs_with_strides_are_copied_or_handed_over(array):
    copied = kernel("uint t = thread_position_in_grid.x; out[t] = x[t];")
    strided = kernel(
        "uint t = thread_position_in_grid.x;"
        "out[t] = x[elem_to_loc(t, x_shape, x_strides, x_ndim)];",
        row_contiguous=False,
    )
    for each in copied, strided:
        (out,) = run(each, **call(array.size, array))
        assert out.tolist() == array.astype(mx.float32).reshape(-1).tolist()


def test_the_grid_counts_threads_and_the_last_threadgroups_are_smaller():
    body = kernel("""uint3 p = thread_position_in_grid;
        out[p.x + threads_per_grid.x * p.y] =
            threads_per_threadgroup.x * 100 + dispatch_threads_per_threadgroup.x; // x""")
    launch = call(1, mx.ones((8,)), shapes=[(2, 10)], dtypes=[mx.uint32])
    (out,) = run(body, **launch | {"grid": (10, 2, 1), "threadgroup": (8, 1, 1)})
    assert out.tolist() == [[808] * 8 + [208] * 2] * 2


def test_positions_in_three_dimensions():
    body = kernel("""uint3 p = thread_position_in_grid, g = threads_per_grid;
        uint i = p.x + g.x * (p.y + g.y * p.z);
        out[i] = threadgroup_position_in_grid.x + 10 * threadgroup_position_in_grid.y
            + 100 * threadgroup_position_in_grid.z + 1000 * thread_index_in_threadgroup;""")
    launch = call(1, mx.ones((8,)), shapes=[(3, 4, 5)], dtypes=[mx.uint32])
    (out,) = run(body, **launch | {"grid": (5, 4, 3), "threadgroup": (2, 4, 2)})
    z, y, x = np.indices((3, 4, 5))
    width = np.where(x // 2 == 2, 1, 2)
    index = x % 2 + width * (y + 4 * (z % 2))
    assert np.array_equal(np.array(out), x // 2 + 100 * (z // 2) + 1000 * index)


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [*((dtype, "checked") for dtype in DTYPES), *((mx.bfloat16, mode) for mode in MODES)],
    ids=str,
)
def test_every_dtype_goes_in_and_out(dtype, mode):
    array = mx.array([0, 1, 1, 0, 1, 0, 0, 1, 1]).astype(dtype)
    body = kernel("uint t = thread_position_in_grid.x; out[t] = x[t];")
    (out,) = run(body, mode=mode, **call(9, array, dtypes=[dtype]))
    assert out.dtype == dtype
    assert out.astype(mx.float32).tolist() == array.astype(mx.float32).tolist()


def test_atomic_outputs_that_start_with_a_value():
    body = kernel(
        "uint t = thread_position_in_grid.x;"
        "atomic_fetch_add_explicit(&out[t % 3], x[t], memory_order_relaxed);",
        atomic_outputs=True,
    )
    launch = call(30, mx.ones((30,)), group=10, shapes=[(3,)])
    (out,) = run(body, init_value=0, schedule="random", **launch)
    assert out.tolist() == [10, 10, 10]


def test_without_a_gpu_the_kernel_itself_cannot_be_called():
    if mx.metal.is_available():
        pytest.skip("there is a Metal GPU")
    with pytest.raises(RuntimeError, match="No Metal back-end"):
        kernel("out[0] = x[0];")(**call(1, mx.ones((9,))))
