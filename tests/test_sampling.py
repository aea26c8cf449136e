"""The maths of one denoising step against hand-worked numbers and too-simple loops."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.kernels import Logits


def accept_by_loop(entropy, bound):
    accepted = np.zeros(len(entropy), bool)
    total = 0.0
    for position in np.argsort(entropy, kind="stable"):
        accepted[position] = total <= bound
        total += entropy[position]
    return accepted


@pytest.mark.parametrize("bound", [0.01, 0.1, 0.5, 10.0, 1e9])
@pytest.mark.parametrize("length", [1, 2, 64])
def test_accept_within_bound_matches_the_loop(bound, length):
    entropy = np.random.default_rng(0).gamma(0.3, size=length).astype(np.float32)
    got = sampling.accept_within_bound(mx.array(entropy)[None], bound)[0]
    assert np.array(got).tolist() == accept_by_loop(entropy, bound).tolist()


def test_the_most_certain_position_is_accepted_whatever_the_bound():
    got = sampling.accept_within_bound(mx.array([[3.0, 2.0, 5.0]]), 1e-6)
    assert got.tolist() == [[False, True, False]]


def test_a_position_whose_predecessors_reach_the_bound_exactly_is_accepted():
    got = sampling.accept_within_bound(mx.array([[0.5, 0.25, 0.125]]), 0.375)
    assert got.tolist() == [[True, True, True]]


def test_of_equal_entropies_the_earlier_position_comes_first():
    got = sampling.accept_within_bound(mx.array([[0.5, 0.5, 0.5]]), 0.5)
    assert got.tolist() == [[True, True, False]]


def test_rows_are_accepted_on_their_own():
    got = sampling.accept_within_bound(mx.array([[0.0, 9.0, 9.0], [0.0, 0.0, 0.0]]), 0.1)
    assert got.tolist() == [[True, True, False], [True, True, True]]


def test_entropy_is_in_nats():
    logits = mx.array(
        [[[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0], [math.log(3), 0.0, -99, -99]]]
    )
    want = [math.log(4), 0.0, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))]
    entropy = sampling.logit_statistics(Logits(logits)).entropy
    assert entropy[0].tolist() == pytest.approx(want, abs=1e-6)


def test_a_forbidden_token_adds_nothing_to_the_entropy():
    logits = Logits(mx.array([[[0.0, 0.0, -mx.inf]]]))
    assert sampling.logit_statistics(logits).entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_no_number_makes_the_entropy_nan(bad):
    logits = Logits(mx.array([[[0.0, bad, 1.0]]]))
    assert math.isnan(sampling.logit_statistics(logits).entropy.item())


def test_softcap_and_temperature_are_part_of_the_logits():
    raw = mx.array([[[8.0, -2.0, 0.5]]])
    want = [5 * math.tanh(x / 5) / 0.7 for x in (8.0, -2.0, 0.5)]
    logits = Logits(raw, cap=5.0, temperature=0.7)
    assert logits.values()[0, 0].tolist() == pytest.approx(want, rel=1e-6)
    assert logits.of(mx.array([[2]])).item() == pytest.approx(want[2], rel=1e-6)
    plain = sampling.logit_statistics(Logits(mx.array([[want]])))
    for one, other in zip(sampling.logit_statistics(logits), plain, strict=True):
        assert one.item() == pytest.approx(other.item(), rel=1e-5)


def test_temperature_runs_from_t_max_and_never_reaches_t_min():
    heats = [sampling.temperature(left, 4, t_min=0.4, t_max=0.8) for left in (4, 3, 2, 1)]
    assert heats == pytest.approx([0.8, 0.7, 0.6, 0.5])
