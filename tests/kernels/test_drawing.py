"""What chance decides, in the kernels as in their twins: the same numbers, rightly distributed."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, RUNS

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Logits, dispatch, drawing
from mlx_diffusiongemma.kernels import reference_sampler as reference

pytestmark = pytest.mark.kernels
NAN, INF = float("nan"), float("inf")


def logits_of(size, spread=3.0, dtype=mx.float32, **changes):
    rows = np.random.default_rng(size[1]).normal(size=size) * spread
    return Logits(mx.array(rows, mx.float32).astype(dtype), **changes)


def close_to_a_border(logits, statistics, key):
    """Rows whose number lies within rounding of a border between two tokens."""
    values = np.array(logits.values(), dtype=np.float64)
    probs = np.exp(values - np.array(statistics.normaliser, dtype=np.float64)[:, None])
    numbers = np.array(mx.random.uniform(shape=(len(values),), key=key), dtype=np.float64)
    return (np.abs(probs.cumsum(axis=-1) - numbers[:, None]) < 1e-6).any(axis=-1)


@pytest.mark.parametrize("how", RUNS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 31, 255, 256])
def test_noise_is_that_of_mlx_to_the_bit(count, how):
    for seed in (0, 7, 2**40 + 3):
        key = mx.random.key(seed)
        (got,) = emulated.run(drawing.noise_launch((1, count), 262_144, key), *how)
        assert got.tolist() == reference.noise_tokens((1, count), 262_144, key)[0].tolist()


def test_noise_is_uniform_and_inside_the_vocabulary():
    for vocabulary in (1, 7, 100):
        tokens = np.array(kernels.noise_tokens((1, 100_000), vocabulary, mx.random.key(1)))[0]
        counts = np.bincount(tokens, minlength=vocabulary)
        assert len(counts) == vocabulary
        want = 100_000 / vocabulary
        chi_square = ((counts - want) ** 2 / want).sum()
        assert chi_square < vocabulary + 6 * (2 * vocabulary) ** 0.5


SIZES = [(1, 1), (9, 7), (5, 33), (7, 1025), (4, 9000)]
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((SIZES[3], dtype, how) for dtype in DTYPES for how in CHECKED),
    *((SIZES[3], mx.float32, how) for how in RUNS if how not in CHECKED),
]


@pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)
def test_tokens_are_those_of_the_twin(size, dtype, how):
    logits = logits_of(size, dtype=dtype, cap=30.0, temperature=0.6)
    statistics = reference.logit_statistics(logits)
    for seed in range(3):
        key = mx.random.key(seed)
        (got,) = emulated.run(drawing.draw_launch(logits, statistics, key), *how)
        want = np.array(reference.draw_tokens(logits, statistics, key))
        clear = ~close_to_a_border(logits, statistics, key)
        assert np.array_equal(np.array(got)[clear], want[clear])
        assert clear.sum() >= 0.8 * len(clear)


@pytest.mark.parametrize("how", [*CHECKED, None], ids=str)
def test_a_row_without_numbers_gives_its_best_token_and_a_forbidden_one_is_never_drawn(how):
    rows = np.full((40, 300), -INF, np.float32)
    rows[:, [5, 299]] = 0
    rows[1] = NAN
    rows[2, 7] = NAN
    logits = Logits(mx.array(rows))
    statistics = reference.logit_statistics(logits)
    statistics = statistics._replace(best=mx.where(mx.arange(40) == 1, 13, statistics.best))
    key = mx.random.key(3)
    if how is None:
        got = reference.draw_tokens(logits, statistics, key)
    else:
        (got,) = emulated.run(drawing.draw_launch(logits, statistics, key), *how)
    assert got[1].item() == 13
    assert got[2].item() == statistics.best[2].item()
    assert set(got[3:].tolist()) == {5, 299}


def test_probabilities_that_fall_short_give_the_best_token():
    logits = logits_of((50, 300))
    statistics = reference.logit_statistics(logits)
    short = statistics._replace(normaliser=statistics.normaliser + 30)
    for got in (
        emulated.run(drawing.draw_launch(logits, short, mx.random.key(0)))[0],
        reference.draw_tokens(logits, short, mx.random.key(0)),
    ):
        assert got.tolist() == statistics.best.tolist()


@pytest.mark.parametrize("by", ["kernel", "twin"])
def test_tokens_follow_the_distribution(by):
    """Chi-square over 20,000 draws of V = 512, tokens expected less than five times together."""
    logits = logits_of((1, 512), spread=2.0, temperature=0.9)
    rows = logits._replace(raw=mx.broadcast_to(logits.raw, (20_000, 512)))
    statistics = reference.logit_statistics(rows)
    key = mx.random.key(9)
    if by == "kernel":
        (tokens,) = emulated.run(drawing.draw_launch(rows, statistics, key), "fast")
    else:
        tokens = reference.draw_tokens(rows, statistics, key)
    values = np.array(logits.values()[0], dtype=np.float64)
    want = 20_000 * np.exp(values) / np.exp(values).sum()
    counts = np.bincount(np.array(tokens), minlength=512)
    rare = want < 5
    got, want = (np.append(each[~rare], each[rare].sum()) for each in (counts, want))
    freedom = len(want) - 1
    chi_square = ((got - want) ** 2 / want).sum()
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_a_vocabulary_of_the_released_size():
    logits = logits_of((2, 262_144), spread=1.0, temperature=0.5)
    statistics = reference.logit_statistics(logits)
    key = mx.random.key(4)
    (got,) = emulated.run(drawing.draw_launch(logits, statistics, key), "fast")
    values = np.array(logits.values(), dtype=np.float64)
    probabilities = np.exp(values - np.array(statistics.normaliser)[:, None])
    numbers = np.array(mx.random.uniform(shape=(2,), key=key), np.float64)
    for row in range(2):  # against float64: the twin's own sum is 2e-5 off after so many floats
        below = probabilities[row, : got[row].item()].sum()
        assert below - 2e-6 <= numbers[row] <= below + probabilities[row, got[row].item()] + 2e-6


def test_the_operations_use_the_kernels_and_keep_the_shape():
    logits = Logits(mx.random.normal((2, 3, 40), key=mx.random.key(1)))
    statistics = reference.logit_statistics(logits)
    with emulated.forced():
        tokens = kernels.draw_tokens(logits, statistics, mx.random.key(2))
        noise = kernels.noise_tokens((2, 3), 40, mx.random.key(2))
    assert tokens.tolist() == reference.draw_tokens(logits, statistics, mx.random.key(2)).tolist()
    assert noise.tolist() == reference.noise_tokens((2, 3), 40, mx.random.key(2)).tolist()


def test_the_trials_pass(monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    logits = Logits(mx.zeros((3, 5, 300), mx.bfloat16), cap=30.0)
    given = logits, reference.logit_statistics(logits), mx.random.key(1)
    assert dispatch.passes_trial(drawing._DRAW, *given)
    assert dispatch.passes_trial(drawing._NOISE, mx.random.key(1), 300)


@pytest.mark.emulator
def test_apple_s_compiler_would_take_them():
    logits = Logits(mx.zeros((2, 300), mx.bfloat16))
    for launch in (
        drawing.draw_launch(logits, reference.logit_statistics(logits), mx.random.key(0)),
        drawing.noise_launch((1, 8), 300, mx.random.key(0)),
    ):
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []
