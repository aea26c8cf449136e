"""The sum of the survivors' embeddings: the kernels against float64, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import each_dtype_and_run
from tolerances import KERNEL_ROUNDING

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import dispatch, sparse
from mlx_diffusiongemma.kernels import reference_sparse as reference
from mlx_diffusiongemma.kernels.reference_sparse import Survivors, Table

pytestmark = pytest.mark.kernels
PACKINGS = {"numbers": None, "8 bits": (64, 8), "4 bits": (32, 4)}


def table(packing, vocabulary, width, dtype=mx.float32, seed=5):
    weight = mx.array(np.random.default_rng(seed).normal(size=(vocabulary, width)), mx.float32)
    if PACKINGS[packing] is None:
        return Table(weight.astype(dtype))
    packed = mx.quantize(weight.astype(dtype), *PACKINGS[packing])
    return Table(*packed, *PACKINGS[packing], "affine")


def some_survivors(counts, most, vocabulary):
    rng = np.random.default_rng(len(counts))
    used = np.arange(most) < np.array(counts)[:, None]
    tokens = np.where(used, rng.integers(0, vocabulary, (len(counts), most)), 0)
    probabilities = np.where(used, rng.dirichlet(np.ones(most), len(counts)), 0.0)
    return Survivors(
        mx.array(tokens, mx.int32),
        mx.array(probabilities, mx.float32),
        mx.array(counts, mx.int32),
        mx.zeros((len(counts),)),
    )


def assert_summed(got, survivors, given, dtype):
    """Against float64, of the numbers that the table stands for."""
    soft, squares = got
    tokens, weights = np.array(survivors.tokens), np.array(survivors.probabilities, np.float64)
    want = np.einsum("rk,rkd->rd", weights, np.array(given.rows(mx.array(tokens)), np.float64))
    assert soft.dtype == dtype
    tolerance = KERNEL_ROUNDING[str(dtype).removeprefix("mlx.core.")]
    np.testing.assert_allclose(
        np.array(soft.astype(mx.float32)), want, rtol=tolerance, atol=tolerance
    )
    total = np.array(squares).reshape(len(want), -1).sum(axis=-1)
    np.testing.assert_allclose(total, (want**2).sum(axis=-1), rtol=1e-5, atol=1e-12)


@each_dtype_and_run
@pytest.mark.parametrize("packing", PACKINGS)
def test_the_sum_of_survivors(packing, dtype, mode, schedule):
    given = table(packing, 301, 192, dtype)
    survivors = some_survivors([0, 1, 5, 40], 40, 301)
    launch = sparse.sum_launch(survivors, given, dtype)
    assert_summed(emulated.run(launch, mode, schedule), survivors, given, dtype)


@pytest.mark.parametrize("width", [1, 3, 33, 130, 264])
def test_numbers_of_any_width(width):
    given, survivors = table("numbers", 7, width), some_survivors([3, 7, 1], 7, 7)
    launch = sparse.sum_launch(survivors, given, mx.float32)
    assert_summed(emulated.run(launch), survivors, given, mx.float32)


@pytest.mark.parametrize("packing", ["8 bits", "4 bits"])
@pytest.mark.parametrize("width", [64, 320, 2816])
def test_packed_rows_of_any_width(packing, width):
    given, survivors = table(packing, 9, width), some_survivors([2, 9], 9, 9)
    launch = sparse.sum_launch(survivors, given, mx.float32)
    assert_summed(emulated.run(launch), survivors, given, mx.float32)


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_number_of_the_embedding_is_found_where_it_lies(packing):
    """One survivor of probability 1: its row, exactly. Each number differs from its neighbours."""
    vocabulary, width = 11, 192
    numbers = mx.arange(vocabulary * width).reshape(vocabulary, width).astype(mx.float32)
    if PACKINGS[packing] is None:
        given = Table(numbers)
    else:
        group, bits = PACKINGS[packing]
        words = np.random.default_rng(0).integers(
            0, 2**32, (vocabulary, width * bits // 32), dtype=np.uint64
        )
        scales = mx.arange(1, vocabulary * width // group + 1).reshape(vocabulary, -1)
        given = Table(
            mx.array(words).astype(mx.uint32),
            *(scales.astype(mx.float32), (scales * 1000).astype(mx.float32)),
            *(group, bits, "affine"),
        )
    ids = mx.arange(vocabulary, dtype=mx.int32)[:, None]
    ones = mx.ones((vocabulary, 1))
    survivors = Survivors(ids, ones, ids[:, 0] * 0 + 1, ones[:, 0])
    soft, _ = emulated.run(sparse.sum_launch(survivors, given, mx.float32))
    assert np.array_equal(np.array(soft), np.array(given.rows(ids[:, 0])))


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_twin_of_the_sum_is_float64_too(packing, monkeypatch):
    given, survivors = table(packing, 301, 192), some_survivors([0, 1, 5, 40], 40, 301)
    for numbers in (10**7, 192 * 40 * 2):
        monkeypatch.setattr(reference, "_NUMBERS_AT_A_TIME", numbers)
        got = reference.sum_survivors(survivors, given, mx.float32)
        assert_summed(got, survivors, given, mx.float32)


def test_the_operation_uses_the_kernels_and_keeps_the_shape():
    launched = []

    def run(launch):
        launched.append(launch.kernel.name)
        return emulated.run(launch)

    found = some_survivors([3, 5, 0, 1, 5, 2], 5, 40)
    found = Survivors(*[part.reshape(2, 3, *part.shape[1:]) for part in found])
    odd = Table(*mx.quantize(mx.ones((40, 64)), mode="mxfp8"), None, 32, 8, "mxfp8")
    with dispatch.forced(run):
        for given in (table("8 bits", 40, 64), table("numbers", 40, 64), odd):
            total = kernels.sum_survivors(found, given, mx.float32)
            assert (total.soft.shape, total.squares.shape) == ((2, 3, 64), (2, 3))
    assert launched == ["sum_packed_survivors", "sum_survivors"]
    want = np.array(mx.sum(found.probabilities, axis=-1))
    np.testing.assert_allclose(np.array(total.soft[..., 0]), want, rtol=1e-6)


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_trial_passes(monkeypatch, packing):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    given, found = table(packing, 300, 64), some_survivors([4, 4], 30, 300)
    assert dispatch.passes_trial(sparse._SUM, found, given, mx.bfloat16)


@pytest.mark.emulator
@pytest.mark.parametrize("packing", PACKINGS)
def test_apple_s_compiler_would_take_them(packing):
    for most in (1, 300):
        found = some_survivors([1, 1], most, 300)
        launch = sparse.sum_launch(found, table(packing, 300, 64, mx.bfloat16), mx.bfloat16)
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []
