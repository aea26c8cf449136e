"""The maths of one denoising step against hand-worked numbers and too-simple loops."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import sampling


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
    assert sampling.logit_statistics(logits).entropy[0].tolist() == pytest.approx(want, abs=1e-6)


def test_a_forbidden_token_adds_nothing_to_the_entropy():
    logits = mx.array([[[0.0, 0.0, -mx.inf]]])
    assert sampling.logit_statistics(logits).entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_no_number_makes_the_entropy_nan(bad):
    assert math.isnan(sampling.logit_statistics(mx.array([[[0.0, bad, 1.0]]])).entropy.item())


def test_temperature_runs_from_t_max_and_never_reaches_t_min():
    heats = [sampling.temperature(left, 4, t_min=0.4, t_max=0.8) for left in (4, 3, 2, 1)]
    assert heats == pytest.approx([0.8, 0.7, 0.6, 0.5])


def test_stable_needs_as_many_equal_canvases_as_the_threshold_says():
    now, same, other = mx.array([[1, 2]]), mx.array([[1, 2]]), mx.array([[1, 3]])
    cases = [([], 0, True), ([], 1, False), ([same], 1, True), ([other], 1, False)]
    cases += [([same], 2, False), ([other, same], 1, True), ([other, same], 2, False)]
    cases += [([same, same], 2, True), ([same, other], 1, False)]
    for history, threshold, want in cases:
        assert sampling.is_stable(now, history, threshold).item() is want, (history, threshold)


def test_confident_compares_the_mean_entropy():
    entropy = mx.array([[0.0, 0.02], [0.0, 0.019]])
    assert sampling.is_confident(entropy, 0.01).tolist() == [False, True]
