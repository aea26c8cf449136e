"""The kernels of the sampler against their twins, under the checker."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, DTYPES, RUNS, each_dtype
from tolerances import KERNEL_ENTROPY

from mlx_diffusiongemma.kernels import Logits, certainty, dispatch
from mlx_diffusiongemma.kernels import reference_sampler as reference

pytestmark = pytest.mark.kernels
each_checked = pytest.mark.parametrize("how", CHECKED, ids=str)
INF, NAN = float("inf"), float("nan")


def exact_entropy(logits: np.ndarray) -> np.ndarray:
    """In float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    probs = np.exp(shifted)
    total = probs.sum(axis=-1, keepdims=True)
    terms = probs * np.where(probs > 0, shifted - np.log(total), 0)
    return -(terms / total).sum(axis=-1)


def assert_statistics(got, logits):
    entropy, normaliser, best = (np.array(part) for part in got)
    numbers = np.array(logits.astype(mx.float32)).reshape(-1, logits.shape[-1])
    np.testing.assert_allclose(entropy, exact_entropy(numbers), atol=KERNEL_ENTROPY)
    want = np.log(np.exp(numbers.astype(np.float64)).sum(axis=-1))
    np.testing.assert_allclose(normaliser, want, atol=KERNEL_ENTROPY)
    assert best.tolist() == numbers.argmax(axis=-1).tolist()


# rows, vocabulary: one token, less than a simdgroup, an odd one, more than the threads.
SIZES = [(1, 1), (3, 7), (2, 33), (3, 1025), (2, 9000)]
CASES = [
    *((size, mx.float32, RUNS[0]) for size in SIZES),
    *((SIZES[3], dtype, how) for dtype in DTYPES for how in CHECKED),
    *((SIZES[3], mx.float32, how) for how in RUNS if how not in CHECKED),
]


@pytest.mark.parametrize(("size", "dtype", "how"), CASES, ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_statistics_are_those_of_float64(size, dtype, how, spread):
    rng = np.random.default_rng(size[1])
    logits = mx.array(rng.normal(size=size) * spread, mx.float32).astype(dtype)
    assert_statistics(emulated.run(certainty.logit_statistics_launch(Logits(logits)), *how), logits)


@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_a_vocabulary_of_the_released_size(spread):
    logits = mx.array(np.random.default_rng(0).normal(size=(1, 262_144)) * spread, mx.float32)
    launch = certainty.logit_statistics_launch(Logits(logits))
    for mode in ("fast", "contracted"):
        assert_statistics(emulated.run(launch, mode), logits)


def test_peaked_and_even_rows():
    rows = np.zeros((4, 3000), np.float32)
    rows[1, 77] = 100
    rows[2, [5, 2999]] = 60
    rows[3] = np.linspace(-300, 0, 3000)
    launch = certainty.logit_statistics_launch(Logits(mx.array(rows)))
    assert_statistics(emulated.run(launch), mx.array(rows))


@each_checked
def test_forbidden_tokens_add_nothing(how):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(4, 2100)).astype(np.float32)
    rows[0, 1:] = -INF
    rows[1, :-1] = -INF
    rows[2, rng.uniform(size=2100) < 0.9] = -INF
    rows[3, ::2] = -INF
    launch = certainty.logit_statistics_launch(Logits(mx.array(rows)))
    assert_statistics(emulated.run(launch, *how), mx.array(rows))


@each_dtype
@each_checked
@pytest.mark.parametrize("place", [0, 31, 1024, 2099])
def test_a_broken_row_has_no_entropy_and_a_real_token(place, dtype, how):
    rows = np.random.default_rng(2).normal(size=(5, 2100)).astype(np.float32)
    rows[0, place] = NAN
    rows[1, place] = INF
    rows[2] = -INF
    rows[3] = NAN
    launch = certainty.logit_statistics_launch(Logits(mx.array(rows).astype(dtype)))
    entropy, _, best = (np.array(part) for part in emulated.run(launch, *how))
    want = np.array(reference.logit_statistics(Logits(mx.array(rows).astype(dtype))).entropy)
    assert np.isnan(entropy).tolist() == np.isnan(want).tolist() == [True] * 4 + [False]
    assert ((best >= 0) & (best < 2100)).all()
    assert best[1] == place


def test_statistics_keep_the_shape():
    logits = mx.random.normal((2, 3, 40), key=mx.random.key(1))
    with emulated.forced():
        got = certainty.logit_statistics(Logits(logits))
    assert {part.shape for part in got} == {(2, 3)}
    assert_statistics([part.reshape(-1) for part in got], logits)


# Acceptance -----------------------------------------------------------------------------------


def assert_accepted(entropy, bound, how):
    (got,) = emulated.run(certainty.accept_launch(entropy, bound), *how)
    want = reference.accept_within_bound(entropy, bound)
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("how", RUNS, ids=str)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 256, 1000, 1024])
def test_a_canvas_of_any_length(length, how):
    rng = np.random.default_rng(length)
    entropy = mx.array(rng.gamma(0.3, size=(2, length)), mx.float32)
    for bound in (0.0, 0.1, 3.0, 1e9):
        assert_accepted(entropy, bound, how)


@each_checked
def test_ties_zeros_and_what_is_not_finite(how):
    rows = [
        [0.5] * 40,
        [0.0, -0.0] * 20,
        [0.1, NAN, 0.1, INF] * 10,
        [NAN] * 40,
        [-1e-7, 0.2] * 20,
    ]
    for bound in (0.0, 0.3, 1.0, INF):
        assert_accepted(mx.array(rows), bound, how)


def test_a_longer_canvas_is_left_to_the_twin():
    entropy = mx.array(np.random.default_rng(0).gamma(0.3, size=(1, 1025)), mx.float32)
    with dispatch.forced(lambda launch: pytest.fail("launched")):
        got = certainty.accept_within_bound(entropy, 3.0)
    assert got.tolist() == reference.accept_within_bound(entropy, 3.0).tolist()


def test_the_trials_pass(monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    assert dispatch.passes_trial(certainty._STATISTICS, Logits(mx.zeros((3, 5, 300))))
    assert dispatch.passes_trial(certainty._ACCEPT, mx.zeros((1, 256)))


@pytest.mark.emulator
@pytest.mark.parametrize("length", [3, 256])
def test_apple_s_compiler_would_take_them(length):
    for launch in (
        certainty.logit_statistics_launch(Logits(mx.zeros((2, length), mx.bfloat16))),
        certainty.accept_launch(mx.zeros((1, length)), 0.1),
    ):
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []
