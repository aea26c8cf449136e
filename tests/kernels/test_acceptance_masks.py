"""Whole canvases of 256 positions are accepted through the kernels as on the plain path.

The accepted positions are the first ones in the order of entropy, so another rounding changes them
only where the sum of entropies comes to the bound there, or where the last accepted and the first
other one are equal. Canvases where either is closer than 1e-5 nats are left out, and counted.
"""

import emulated
import mlx.core as mx
import numpy as np
import pytest
from tolerances import KERNEL_ENTROPY, PLAIN_ENTROPY

from mlx_diffusiongemma.kernels import Logits, certainty
from mlx_diffusiongemma.kernels import reference_sampler as reference

pytestmark = pytest.mark.kernels
POSITIONS = 256
BOUNDS = (0.1, 5.0)  # the reference's, and one that accepts many
CLOSE = 1e-5  # nats


def exact_entropy(logits: Logits) -> np.ndarray:
    """In float64, a few rows at a time."""
    rows = logits.raw.reshape(-1, logits.raw.shape[-1])
    entropies = []
    for row in rows:
        values = np.array(logits._replace(raw=row).values(), dtype=np.float64)
        values -= values.max()
        values = values[values > -np.inf]
        weights = np.exp(values)
        total = weights.sum()
        entropies.append(np.log(total) - (weights * values).sum() / total)
    return np.array(entropies).reshape(logits.raw.shape[:-1])


def is_close(entropy: np.ndarray, bound: float) -> np.ndarray:
    """bool [B], of entropies [B, L]: whether rounding may decide what is accepted."""
    ascending = np.sort(entropy.astype(np.float64), axis=-1)
    before = np.cumsum(ascending, axis=-1) - ascending
    accepted = (before <= bound).sum(axis=-1)
    following = np.minimum(accepted, entropy.shape[-1] - 1)[:, None]
    gap = np.take_along_axis(np.diff(ascending, prepend=-1.0), following, axis=-1)[:, 0]
    tie = (gap < CLOSE) & (accepted < entropy.shape[-1])
    return tie | (np.abs(before - bound) < CLOSE).any(axis=-1)


def masks(entropy: mx.array, bound: float, *, kernels: bool) -> np.ndarray:
    if not kernels:
        return np.array(reference.accept_within_bound(entropy, bound))
    with emulated.forced("fast"):
        return np.array(certainty.accept_within_bound(entropy, bound))


def compared(logits: Logits) -> np.ndarray:
    """How many canvases were left out for each bound; AssertionError where another one differs."""
    with emulated.forced("fast"):
        ours = certainty.logit_statistics(logits).entropy
        mx.eval(ours)
    plain = reference.logit_statistics(logits).entropy
    left_out = []
    for bound in BOUNDS:
        got, want = masks(ours, bound, kernels=True), masks(plain, bound, kernels=False)
        close = is_close(np.array(plain), bound)
        assert np.array_equal(got[~close], want[~close]), bound
        assert (want.sum(axis=-1) > 0).all()
        assert 0 < want.mean() < 1
        left_out.append(close.sum())
    return np.array(left_out)


def small(count: int, seed: int) -> Logits:
    """Canvases of V = 512 whose positions are from nearly certain to nearly even."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(1, 12, size=(count, POSITIONS, 1)).astype(np.float32)
    return Logits(mx.array(rng.standard_normal((count, POSITIONS, 512), dtype=np.float32) * spread))


def released(positions: int, seed: int) -> Logits:
    """A canvas of V = 262,144 as the head writes it; half of its positions have a best token that
    stands out."""
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((1, positions, 262_144), dtype=np.float32)
    raw[0, ::2, 777] = rng.uniform(8, 25, size=raw[0, ::2, 777].shape)
    return Logits(mx.array(raw).astype(mx.float16), cap=30.0, temperature=0.6)


def test_random_canvases_are_accepted_as_on_the_plain_path():
    assert (compared(small(100, 0)) <= 5).all()


@pytest.mark.slow
def test_a_thousand_canvases_are_accepted_as_on_the_plain_path():
    left_out = sum(compared(small(50, seed)) for seed in range(20))
    assert (left_out <= 20).all()


def test_the_plain_path_knows_entropies_of_the_released_vocabulary():
    """Also where the vocabulary is no multiple of a block, and where nothing is left of a block."""
    logits = released(8, 2)
    for raw in (logits.raw, logits.raw[..., :200_001]):
        given = logits._replace(raw=raw)
        plain = np.array(reference.logit_statistics(given).entropy)
        np.testing.assert_allclose(plain, exact_entropy(given), atol=PLAIN_ENTROPY)
    few = mx.where(mx.arange(9001) % 3000 == 7, mx.arange(9001) / 9001, -mx.inf)
    given = Logits(few[None])
    statistics = reference.logit_statistics(given)
    np.testing.assert_allclose(np.array(statistics.entropy), exact_entropy(given), atol=1e-6)
    assert statistics.best.tolist() == [6007]


def test_positions_of_the_released_vocabulary_are_accepted_as_on_the_plain_path():
    assert not compared(released(16, 1)).any()


@pytest.mark.slow
def test_canvases_of_the_released_vocabulary_are_accepted_as_on_the_plain_path():
    """And as by entropies in float64, to which the kernel's are as close as it promises."""
    for seed in range(3):
        logits = released(POSITIONS, seed)
        assert compared(logits).sum() <= 1
        exact = exact_entropy(logits)
        with emulated.forced("fast"):
            ours = certainty.logit_statistics(logits).entropy
        np.testing.assert_allclose(np.array(ours), exact, atol=KERNEL_ENTROPY)
        for bound in BOUNDS:
            if not is_close(exact, bound).any():
                want = reference.accept_within_bound(mx.array(exact.astype(np.float32)), bound)
                assert np.array_equal(masks(ours, bound, kernels=True), np.array(want))


def test_what_is_close_is_known():
    far = np.array([[0.01, 0.05, 0.2, 0.3]])
    at_the_bound = np.array([[0.04, 0.06 + 1e-6, 0.2, 0.3]])
    tie = np.array([[0.01, 0.2, 0.2 + 1e-6, 0.3]])
    elsewhere = np.array([[0.01, 0.01, 0.05, 0.2, 0.3, 0.3]])
    assert [is_close(each, 0.1)[0] for each in (far, at_the_bound, tie, elsewhere)] == [
        *(False, True, True, False)
    ]
    assert not is_close(np.array([[0.01, 0.02]]), 0.1)[0]
