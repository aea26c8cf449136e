"""Which tokens survive, and the bound on the others: the kernel against float64."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, RUNS
from tolerances import KERNEL_ENTROPY

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Logits, dispatch, sparse
from mlx_diffusiongemma.kernels import reference_sampler as sampler
from mlx_diffusiongemma.kernels import reference_sparse as reference
from mlx_diffusiongemma.kernels.reference_sparse import DEPTH, Survivors

pytestmark = pytest.mark.kernels
each_checked = pytest.mark.parametrize("how", CHECKED, ids=str)
INF, NAN = float("inf"), float("nan")


def logits_of(rows, dtype=mx.float32, cap=0.0, temperature=1.0):
    return Logits(mx.array(rows, mx.float32).astype(dtype), cap, temperature)


def norms_of(vocabulary, seed=0):
    return mx.array(np.random.default_rng(seed).uniform(0.1, 3, vocabulary), mx.float32)


def picked(logits, norms, *how):
    """What the kernel makes, as numpy."""
    launch = sparse.survivors_launch(logits, sampler.logit_statistics(logits), norms)
    return Survivors(*[np.array(part) for part in emulated.run(launch, *how)])


def assert_picked(got, logits, norms):
    """Against float64 and lists. Logits must not lie within rounding of the border."""
    values = np.array(logits.values(), dtype=np.float64)
    lengths = np.array(norms, dtype=np.float64)
    most = got.tokens.shape[1]
    for row, numbers in enumerate(values):
        weights = np.exp(numbers - numbers.max())
        weights /= weights.sum()
        ids = np.flatnonzero(numbers >= numbers.max() - DEPTH)[:most]
        dropped = np.delete(weights * lengths, ids).sum()
        assert got.counts[row] == len(ids)
        assert got.tokens[row].tolist() == [*ids, *[0] * (most - len(ids))]
        np.testing.assert_allclose(
            got.probabilities[row, : len(ids)], weights[ids], rtol=KERNEL_ENTROPY * 4
        )
        assert not got.probabilities[row, len(ids) :].any()
        assert dropped <= got.error[row] <= 1.002 * dropped + 1e-12


# rows, vocabulary: one token, less than a simdgroup, an odd one, several blocks, and more survivors
# than there is room for.
SIZES = [(1, 1), (3, 7), (2, 33), (3, 1025), (2, 9001)]
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((SIZES[3], dtype, how) for dtype in DTYPES for how in CHECKED),
    *((SIZES[4], mx.float32, how) for how in RUNS[1:]),
]


@pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_survivors_are_those_of_float64(size, dtype, how, spread):
    rows = np.random.default_rng(size[1]).normal(size=size) * spread
    logits, norms = logits_of(rows, dtype), norms_of(size[1])
    assert_picked(picked(logits, norms, *how), logits, norms)


def test_softcap_and_temperature_are_applied():
    rows = np.random.default_rng(3).normal(size=(2, 700)) * 20
    logits, norms = logits_of(rows, mx.float32, 30.0, 0.5), norms_of(700)
    got = picked(logits, norms)
    assert_picked(got, logits, norms)
    plain = picked(logits_of(rows), norms)
    assert got.counts.tolist() != plain.counts.tolist()


def test_a_vocabulary_of_the_released_size():
    rows = np.random.default_rng(4).normal(size=(1, 262_144)) * 8
    logits, norms = logits_of(rows), norms_of(262_144)
    for mode in ("fast", "contracted"):
        got = picked(logits, norms, mode)
        assert 0 < got.counts[0] < 2048
        assert_picked(got, logits, norms)


@each_checked
def test_more_survivors_than_room_are_counted_as_dropped(how):
    rows = np.zeros((2, 5000), np.float32)
    rows[1, 4999] = 3.0
    norms = norms_of(5000)
    got = picked(logits_of(rows), norms, *how)
    assert got.counts.tolist() == [2048, 2048]
    assert got.tokens.tolist() == [list(range(2048))] * 2
    assert_picked(got, logits_of(rows), norms)


@each_checked
def test_a_token_on_the_border_survives_and_the_next_below_does_not(how):
    rows = np.full((2, 300), -50.0, np.float32)
    rows[:, 77] = 4.0
    rows[:, [5, 299]] = 4.0 - DEPTH
    rows[1, [5, 299]] = np.nextafter(np.float32(4.0 - DEPTH), np.float32(-INF))
    logits, norms = logits_of(rows), norms_of(300)
    twin = reference.survivors(logits, sampler.logit_statistics(logits), norms)
    for found in (picked(logits, norms, *how), twin):
        assert found.counts.tolist() == [3, 1]
        assert found.tokens[:, :3].tolist() == [[5, 77, 299], [77, 0, 0]]


@each_checked
def test_ties_for_the_best_all_survive(how):
    rows = np.full((1, 2100), -30.0, np.float32)
    rows[0, [0, 31, 1024, 2099]] = 7.0
    got = picked(logits_of(rows), norms_of(2100), *how)
    assert got.tokens[0, :4].tolist() == [0, 31, 1024, 2099]
    assert got.counts.tolist() == [4]
    np.testing.assert_allclose(got.probabilities[0, :4], 0.25, rtol=1e-6)


@each_checked
def test_forbidden_tokens_never_survive(how):
    rows = np.random.default_rng(1).normal(size=(3, 2100)).astype(np.float32)
    rows[0, 1:] = -INF
    rows[1, ::2] = -INF
    rows[2, :-1] = -INF
    norms = norms_of(2100)
    got = picked(logits_of(rows), norms, *how)
    assert_picked(got, logits_of(rows), norms)
    assert got.error[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_checked
def test_a_broken_row_has_no_certificate_and_real_tokens(dtype, how):
    rows = np.random.default_rng(2).normal(size=(5, 300)).astype(np.float32)
    rows[0, 17] = NAN
    rows[1, 299] = INF
    rows[2] = -INF
    rows[3] = NAN
    logits, norms = logits_of(rows, dtype), norms_of(300)
    got = picked(logits, norms, *how)
    twin = reference.survivors(logits, sampler.logit_statistics(logits), norms)
    for error in (got.error, np.array(twin.error)):
        assert np.isnan(error).tolist() == [True] * 4 + [False]
    for tokens in (got.tokens, np.array(twin.tokens)):
        assert ((tokens >= 0) & (tokens < 300)).all()


def test_the_twin_is_float64_too():
    for (rows, vocabulary), spread in zip(SIZES, (1.0, 1.0, 4.0, 4.0, 0.5), strict=True):
        numbers = np.random.default_rng(vocabulary).normal(size=(rows, vocabulary)) * spread
        logits, norms = logits_of(numbers, cap=30.0, temperature=0.7), norms_of(vocabulary)
        got = reference.survivors(logits, sampler.logit_statistics(logits), norms)
        assert_picked(Survivors(*[np.array(part) for part in got]), logits, norms)


def test_the_operation_uses_the_kernel_and_keeps_the_shape():
    logits = logits_of(np.random.default_rng(5).normal(size=(2, 3, 40)))
    with emulated.forced():
        found = kernels.survivors(logits, sampler.logit_statistics(logits), norms_of(40))
    assert [part.shape for part in found] == [(2, 3, 40)] * 2 + [(2, 3)] * 2
    assert_picked(
        Survivors(*[np.array(part).reshape(6, *part.shape[2:]) for part in found]),
        logits._replace(raw=logits.raw.reshape(6, 40)),
        norms_of(40),
    )


@pytest.mark.parametrize("vocabulary", [300, 5000])
def test_the_trial_passes(monkeypatch, vocabulary):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    logits = Logits(mx.zeros((3, 5, vocabulary), mx.bfloat16), 30.0, 0.7)
    given = logits, sampler.logit_statistics(logits), norms_of(vocabulary)
    assert dispatch.passes_trial(sparse._SURVIVORS, *given)


@pytest.mark.emulator
@pytest.mark.parametrize("vocabulary", [3, 300])
def test_apple_s_compiler_would_take_it(vocabulary):
    logits = Logits(mx.zeros((2, vocabulary), mx.bfloat16))
    launch = sparse.survivors_launch(logits, sampler.logit_statistics(logits), norms_of(vocabulary))
    kernel = dispatch.metal_kernel(launch.kernel)
    assert emulator.type_errors(kernel, **launch.arguments()) == []
