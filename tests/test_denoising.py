"""The loop over denoising steps, driven by scripted predictions."""

import mlx.core as mx
import numpy as np
import pytest
from scripted import CountingDraws, certain_of

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.denoising import denoise, denoising_loop
from mlx_diffusiongemma.draws import DrawTrace, RecordingDraws, ReplayedDraws, SeededDraws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.passes import Evaluate, Predict

V, L = 11, 6


def run(predict, draws=None, **settings):
    steps = SamplerSettings(**{"max_denoising_steps": 5, **settings})
    return list(denoise(predict, draws or SeededDraws(3), steps, canvas_length=L, vocab_size=V))


def noisy(seed):
    """A predictor that depends on the canvas and on the step before, so every mix-up shows."""
    weights = mx.array(np.random.default_rng(seed).normal(size=(V, V)).astype(np.float32))

    def predict(canvas, previous):
        logits = 2 * weights[canvas]
        return logits if previous is None else logits + 0.3 * mx.softmax(previous, axis=-1)

    return predict


def test_stops_at_the_second_agreeing_step():
    steps = run(lambda canvas, previous: certain_of([4] * L, V))
    assert [step.converged for step in steps] == [False, True]
    assert steps[-1].argmax_canvas.tolist() == [[4] * L]


@pytest.mark.parametrize(("threshold", "passes"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_stability_threshold_counts_earlier_canvases(threshold, passes):
    steps = run(lambda canvas, previous: certain_of([4] * L, V), stability_threshold=threshold)
    assert len(steps) == passes


def test_stable_but_not_confident_runs_out_of_steps():
    steps = run(lambda canvas, previous: certain_of([4] * L, V, height=1.0))
    assert [step.converged for step in steps] == [False] * 5


def test_confident_but_not_stable_runs_on():
    answers = iter([[1] * L, [2] * L, [3] * L, [4] * L, [5] * L])
    steps = run(lambda canvas, previous: certain_of(next(answers), V))
    assert [step.converged for step in steps] == [False] * 5
    assert steps[-1].argmax_canvas.tolist() == [[5] * L]


def test_a_change_of_mind_starts_the_count_anew():
    answers = iter([[1] * L, [2] * L, [2] * L])
    assert len(run(lambda canvas, previous: certain_of(next(answers), V))) == 3


def test_the_canvas_follows_the_naive_loop():
    """A second implementation, one position at a time, must make the same canvases."""
    predict, recorder = noisy(1), RecordingDraws(SeededDraws(5))
    seen = []

    def spy(canvas, previous):
        seen.append((np.array(canvas), None if previous is None else np.array(previous)))
        return predict(canvas, previous)

    steps = run(spy, recorder, max_denoising_steps=4, t_min=0.5, t_max=1.5, entropy_bound=2.0)
    canvas, previous = np.array(recorder.trace.initial_canvases[0]), None
    for index, step in enumerate(steps):
        assert np.array_equal(seen[index][0], canvas)
        heat = 0.5 + 1.0 * (4 - index) / 4
        before = None if previous is None else mx.array(previous)
        logits = np.array(predict(mx.array(canvas), before)) / np.float32(heat)
        if previous is not None:
            np.testing.assert_allclose(seen[index][1], previous, rtol=1e-6)
        probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        entropy = -(probs * np.log(probs)).sum(-1)[0]
        np.testing.assert_allclose(np.array(step.entropy)[0], entropy, rtol=1e-4)
        total, accepted = 0.0, [False] * L
        for position in np.argsort(entropy, kind="stable"):
            accepted[position] = bool(total <= 2.0)
            total += entropy[position]
        assert step.accepted.tolist() == [accepted]
        assert step.argmax_canvas.tolist() == [logits.argmax(-1)[0].tolist()]
        candidates = recorder.trace.candidates[index]
        renoise = recorder.trace.renoise[index]
        canvas = np.where(np.array([accepted]), np.array(candidates), np.array(renoise))
        previous = logits


def test_accepted_positions_take_the_candidate_and_the_others_are_renoised():
    trace = DrawTrace([mx.array([[0] * L])], [mx.array([[7] * L])] * 2, [mx.array([[9] * L])] * 2)
    seen = []
    logits = np.array(certain_of([4] * L, V))
    logits[0, 2:] = 0.0  # positions 2.. know nothing: ln 11 nats each

    def predict(canvas, previous):
        seen.append(canvas.tolist())
        return mx.array(logits)

    steps = run(predict, ReplayedDraws(trace), max_denoising_steps=2, entropy_bound=2.0)
    assert steps[0].accepted.tolist() == [[True, True, True, False, False, False]]
    assert seen == [[[0] * L], [[7, 7, 7, 9, 9, 9]]]


def test_the_step_before_is_fed_back_temperature_scaled():
    fed = []

    def predict(canvas, previous):
        fed.append(previous)
        return certain_of([4] * L, V, height=6.0)

    run(predict, max_denoising_steps=2, t_min=0.5, t_max=1.5)
    assert fed[0] is None
    assert fed[1][0, 0, 4].item() == pytest.approx(6.0 / 1.5)


def test_every_step_draws_once_whether_watched_or_not():
    draws = CountingDraws()
    steps = run(noisy(2), draws, max_denoising_steps=3)
    assert draws.counts == {"initial_canvas": 1, "candidates": 3, "renoise": 3}
    assert len(steps) == 3


def test_the_seed_decides_and_nothing_else_does():
    def canvases(seed):
        return [step.argmax_canvas.tolist() for step in run(noisy(4), SeededDraws(seed))]

    first = canvases(1)
    mx.random.seed(99)
    mx.random.normal((3,))
    assert canvases(1) == first
    assert canvases(2) != first


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_stop_with_the_step_named(bad):
    def predict(canvas, previous):
        logits = np.array(certain_of([4] * L, V, height=1.0))
        if previous is not None:
            logits[0, 3, 5] = bad
        return mx.array(logits)

    with pytest.raises(GenerationError, match="canvas 1, denoising step 2"):
        run(predict)


def test_a_step_waits_for_the_device_once():
    settings = SamplerSettings(max_denoising_steps=4)
    loop, answer, asked = (
        denoising_loop(SeededDraws(3), settings, canvas_length=L, vocab_size=V),
        None,
        [],
    )
    try:
        while True:
            asked.append(loop.send(answer))
            answer = None
            if isinstance(asked[-1], Predict):
                answer = Logits(noisy(3)(asked[-1].canvas, None))
    except StopIteration:
        kinds = [type(one) for one in asked if isinstance(one, Predict | Evaluate)]
    assert kinds == [Predict, Evaluate] * 4


def test_replaying_a_recorded_trace_repeats_every_step():
    recorder = RecordingDraws(SeededDraws(8))
    first = run(noisy(6), recorder)
    again = run(noisy(6), ReplayedDraws(recorder.trace))
    assert [s.argmax_canvas.tolist() for s in first] == [s.argmax_canvas.tolist() for s in again]
    assert [s.accepted.tolist() for s in first] == [s.accepted.tolist() for s in again]


def test_a_trace_that_is_too_short_or_of_another_shape_is_refused():
    recorder = RecordingDraws(SeededDraws(8))
    run(noisy(6), recorder, max_denoising_steps=2)
    with pytest.raises(GenerationError, match="no more candidates"):
        run(noisy(6), ReplayedDraws(recorder.trace), max_denoising_steps=3)
    wrong = DrawTrace([mx.zeros((1, L + 1), mx.int32)])
    with pytest.raises(GenerationError, match=r"shape \(1, 7\) initial canvas"):
        run(noisy(6), ReplayedDraws(wrong))


def test_seeded_draws_cover_the_vocabulary_uniformly_and_differ():
    draws = SeededDraws(0)
    canvas = np.array(draws.initial_canvas((1, 20_000), V))
    assert canvas.min() == 0
    assert canvas.max() == V - 1
    counts = np.bincount(canvas[0], minlength=V)
    assert abs(counts - 20_000 / V).max() < 6 * (20_000 / V) ** 0.5
    assert not np.array_equal(canvas, np.array(draws.renoise((1, 20_000), V)))


def test_candidates_follow_the_distribution():
    logits = mx.broadcast_to(mx.log(mx.array([0.7, 0.2, 0.1])), (1, 20_000, 3))
    logits = Logits(logits)
    tokens = SeededDraws(1).candidates(logits, sampling.logit_statistics(logits))
    drawn = np.bincount(np.array(tokens)[0], minlength=3) / 20_000
    assert drawn == pytest.approx([0.7, 0.2, 0.1], abs=0.015)


def test_the_largest_seed_works():
    assert SeededDraws(2**64 - 1).initial_canvas((1, 4), V).shape == (1, 4)


def test_entropy_matches_the_events_entropy():
    steps = run(noisy(7), max_denoising_steps=1, t_min=0.5, t_max=1.5)
    canvas = SeededDraws(3).initial_canvas((1, L), V)
    want = sampling.logit_statistics(Logits(noisy(7)(canvas, None), temperature=1.5)).entropy
    np.testing.assert_allclose(np.array(steps[0].entropy), np.array(want), rtol=1e-6)
