"""The products with packed experts against their twin and in whole numbers, under the checker."""

import emulated
import emulator
import expert_arguments
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, each_dtype
from expert_arguments import AWKWARD
from tolerances import KERNEL_PRODUCTS

from mlx_diffusiongemma.kernels import dispatch, expert_products, reference_experts
from mlx_diffusiongemma.kernels.expert_products import WAYS

pytestmark = pytest.mark.kernels

NAN = float("nan")
PRODUCTS = {
    "gate_up": (expert_products.gated_launch, reference_experts.gated_products),
    "down": (expert_products.down_launch, reference_experts.down_products),
}
each_way = pytest.mark.parametrize("way", WAYS)
each_part = pytest.mark.parametrize("part", PRODUCTS)
each_bits = pytest.mark.parametrize("bits", [4, 8])


def assert_as_the_twin(part, way, given, *how):
    launch, twin = PRODUCTS[part]
    x, routing, packed = given
    (got,) = emulated.run(launch(way, x, routing, packed), *how)
    want = np.array(twin(x.astype(mx.float32), routing, expert_arguments.widened(packed)))
    assert (got.shape, got.dtype) == (want.shape, x.dtype)
    error = np.abs(np.array(got.astype(mx.float32)) - want).max() / np.abs(want).max()
    assert error <= KERNEL_PRODUCTS[str(x.dtype).removeprefix("mlx.core.")]


def drawn(counts, inputs, outputs, bits, group=32, dtype=mx.float32):
    return (
        expert_arguments.rows(sum(counts), inputs, dtype),
        expert_arguments.routing(counts),
        expert_arguments.packed(len(counts), outputs, inputs, bits, group, dtype),
    )


# Compiling takes most of the time here: tests share what they can.
# Four bits in every dtype, in every order, and with fused multiply-add; eight in every order, too.
CASES = [(4, dtype, how) for dtype in DTYPES for how in CHECKED]
CASES += [(4, mx.float32, ("contracted", "in order"))]
CASES += [(8, dtype, how) for dtype, how in zip(DTYPES, CHECKED, strict=True)]


@each_way
@each_part
@pytest.mark.parametrize(("bits", "dtype", "how"), CASES, ids=str)
def test_experts_with_no_one_few_and_many_rows(part, way, bits, dtype, how):
    """Columns that fill no threadgroup: 40 of 64, 20 of 32."""
    assert_as_the_twin(part, way, drawn(AWKWARD, 64, 40, bits, dtype=dtype), *how)


@each_way
@each_part
@pytest.mark.parametrize(("bits", "dtype"), [(4, mx.float32), (8, mx.float16)], ids=str)
def test_one_expert_has_all_rows_of_a_long_prompt(part, way, bits, dtype):
    given = drawn((0, 100, 0), 64, 144, bits, dtype=dtype)
    launch = PRODUCTS[part][0](way, *given)
    assert dict(launch.template)["ROWS"] == 32
    assert_as_the_twin(part, way, given)


@each_way
@each_part
@pytest.mark.parametrize(("inputs", "group", "bits"), [(704, 64, 4), (704, 64, 8), (384, 128, 4)])
def test_inputs_that_fill_no_block_and_every_size_of_group(part, way, inputs, group, bits):
    given = drawn((5, 9), inputs, 24, bits, group, mx.float16)
    assert_as_the_twin(part, way, given)


@each_way
@each_part
def test_one_row_and_scales_of_another_dtype(part, way):
    """And fewer offsets, tokens and scales than MLX keeps in device memory."""
    x, routing, packed = drawn((0, 1), 32, 2, 8, dtype=mx.bfloat16)
    assert_as_the_twin(part, way, (x.astype(mx.float16), routing, packed))


def test_threadgroup_memory_fits_for_every_dtype_and_tile():
    for dtype in DTYPES:
        for rows in (16, 32):
            inputs = expert_products._inputs(dtype, rows)
            assert inputs * (rows + 8) * dtype.size <= 32 * 1024
            assert inputs % 128 == 0  # whole groups of every size


# Whole numbers: every address shows, nothing is rounded ---------------------------------------

# Experts' rows, inputs, outputs, bits: awkward rows; as many inputs as are released, or outputs.
SIZES = [(AWKWARD, 64, 40, 4), (AWKWARD, 64, 40, 8)]
LONG = [((0, 19), 2816, 24, 4), ((9, 0, 8), 32, 2816, 8)]


@each_way
@pytest.mark.parametrize(
    ("counts", "inputs", "outputs", "bits", "dtype"),
    [*((*size, mx.float32) for size in (*SIZES, *LONG)), (*SIZES[0], mx.float16)],
    ids=str,
)
def test_down_is_the_product_of_whole_numbers(way, counts, inputs, outputs, bits, dtype):
    """At most 8 of a row's numbers are not 0, so that half holds every sum."""
    weight, packed = expert_arguments.whole_numbers(
        len(counts), outputs, inputs, bits, -(1 << bits) // 2
    )
    rng = np.random.default_rng(5)
    x = np.zeros((sum(counts), inputs), np.int64)
    for row in x:
        row[rng.choice(inputs, 8, replace=False)] = rng.integers(-2, 3, 8)
    routing = expert_arguments.routing(counts)
    launch = expert_products.down_launch(way, mx.array(x).astype(dtype), routing, packed)
    want = np.einsum("pk,pnk->pn", x, weight[np.array(routing.sorted_experts)])
    assert np.abs(want).max() <= 2048
    np.testing.assert_array_equal(np.array(emulated.run(launch)[0]), want)


@each_way
@pytest.mark.parametrize(
    ("counts", "inputs", "outputs", "bits"),
    [*SIZES, *(pytest.param(*size, marks=pytest.mark.slow) for size in LONG)],
    ids=str,
)
def test_gate_times_up_is_the_product_of_whole_numbers(way, counts, inputs, outputs, bits):
    """Of a gate of 10 or more gelu is the gate itself, in float32."""
    weight, packed = expert_arguments.whole_numbers(len(counts), outputs, inputs, bits, 3)
    x = np.zeros((sum(counts), inputs), np.int64)
    for row in x:
        row[np.random.default_rng(6).choice(inputs, 12, replace=False)] = 1
    x[:, 1] = np.arange(len(x)) % 5
    routing = expert_arguments.routing(counts)
    launch = expert_products.gated_launch(way, mx.array(x, mx.float32), routing, packed)
    rows = x[np.array(routing.tokens)]
    gate, up = np.split(
        np.einsum("pk,pnk->pn", rows, weight[np.array(routing.sorted_experts)]), 2, axis=-1
    )
    assert gate.min() >= 10 and (gate * up).max() < 1 << 24
    np.testing.assert_array_equal(np.array(emulated.run(launch)[0]), gate * up)


LANES = np.arange(32)
ROW = (LANES // 4 & 4) + LANES // 2 % 4  # of a fragment, that a lane holds two neighbours in
COLUMN = (LANES // 4 & 2) * 2 + LANES % 2 * 2  # of the first of them


@each_bits
@pytest.mark.parametrize("inputs", [32, 704, 2816])
def test_fragments_meet_every_input_once_and_at_its_own_place(bits, inputs):
    """The order of metal/fragments_functions.metal, lane by lane, in int64."""
    per_word = 32 // bits
    rng = np.random.default_rng(7)
    weight, x = rng.integers(0, 1 << bits, (8, inputs)), rng.integers(-99, 99, (8, inputs))
    words = weight.reshape(8, -1, per_word)
    k = np.arange(inputs)
    of_chunk = k % (4 * per_word)
    place = k - of_chunk + 8 * (of_chunk % per_word // 2) + of_chunk // per_word * 2 + k % 2
    assert sorted(place) == k.tolist()
    staged = np.empty((inputs, 8), np.int64)
    staged[place] = x.T
    product, used = np.zeros((8, 8), np.int64), np.zeros((8, inputs), int)
    for chunk in range(0, inputs, 4 * per_word):
        for step in range(per_word // 2):
            left, right = np.empty((2, 8, 8), np.int64)
            word = chunk // per_word + COLUMN // 2
            for i in range(2):
                left[ROW, COLUMN + i] = words[ROW, word, 2 * step + i]
                right[ROW, COLUMN + i] = staged[chunk + 8 * step + ROW, COLUMN + i]
                np.add.at(used, (ROW, word * per_word + 2 * step + i), 1)
            product += left @ right
    assert (used == 1).all()
    np.testing.assert_array_equal(product, weight @ x.T)


# Numbers that are not ordinary ----------------------------------------------------------------


@each_way
@each_part
def test_nan_stays_in_its_row_and_in_its_column(part, way):
    x, routing, packed = drawn(AWKWARD, 64, 40, 4)
    token = 5
    bad = mx.where(mx.arange(85)[:, None] == token, NAN, x)
    (got,) = emulated.run(PRODUCTS[part][0](way, bad, routing, packed))
    slot = routing.inverse[token, 0].item() if part == "gate_up" else token
    want = np.zeros(got.shape, bool)
    want[slot] = True
    np.testing.assert_array_equal(np.isnan(np.array(got)), want)

    at = mx.arange(8)[:, None, None] == 3, mx.arange(40)[:, None] == 7
    broken = packed._replace(scales=mx.where(at[0] & at[1], NAN, packed.scales))
    (got,) = emulated.run(PRODUCTS[part][0](way, x, routing, broken))
    want = np.zeros(got.shape, bool)
    want[4:19, 7] = True
    np.testing.assert_array_equal(np.isnan(np.array(got)), want)


# What Metal asks ------------------------------------------------------------------------------


@pytest.mark.emulator
@each_way
@each_part
@each_dtype
def test_apple_s_compiler_would_take_them(part, way, dtype):
    """With offsets of two experts, which lie in constant memory, and those of many."""
    counts, bits = ((2, 3), 8) if dtype == mx.float16 else ((40,) * 7, 4)
    launch = PRODUCTS[part][0](way, *drawn(counts, 32, 4, bits, dtype=dtype))
    kernel = dispatch.metal_kernel(launch.kernel)
    assert emulator.type_errors(kernel, **launch.arguments()) == []


@each_way
def test_the_trials_pass(way, monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    x, _, packed = drawn((2, 3), 32, 40, 4)
    for operations, tile in ((expert_products._GATED, 16), (expert_products._DOWN, 32)):
        assert dispatch.passes_trial(operations[way], x, packed, tile)
