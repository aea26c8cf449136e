"""Shorter canvases: only where they are asked for, exact in length, nothing lost."""

import threading
from itertools import islice

import mlx.core as mx
import numpy as np
import pytest
from scripted import CountingDraws, certain_of

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import DenoisingStep, GenerationOptions
from mlx_diffusiongemma.denoising import denoise
from mlx_diffusiongemma.options import SamplerSettings

V, L, END = 11, 40, 1
STORY = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


def lengths(runtime, prompt, **asked):
    events = runtime.stream(prompt, GenerationOptions(seed=1, **asked))
    return [e.argmax_canvas.shape[1] for e in events if isinstance(e, DenoisingStep)]


def test_a_canvas_is_as_long_as_it_is_asked_for_and_else_the_checkpoints(runtime):
    assert set(lengths(runtime, "2 + 2 =", canvas_length=16)) == {16}
    assert set(lengths(runtime, "2 + 2 =")) == {32}
    assert set(lengths(runtime, "2 + 2 =", max_tokens=1)) == {32}
    assert runtime.generate("2 + 2 =", GenerationOptions(seed=1, canvas_length=16)).text


@pytest.mark.parametrize("max_tokens", [1, 16, 17, 33])
def test_max_tokens_is_exact_over_short_canvases(runtime, max_tokens):
    options = GenerationOptions(seed=1, canvas_length=16, max_tokens=max_tokens)
    result = runtime.generate(STORY, options)
    assert len(result.token_ids) == max_tokens
    assert result.stats.canvases == -(-max_tokens // 16)


def test_a_canvas_longer_than_the_checkpoints_is_refused(runtime):
    with pytest.raises(dg.ConfigError, match="canvas_length is 33") as caught:
        runtime.generate(STORY, GenerationOptions(canvas_length=33))
    assert "at most 32" in caught.value.hint


def run(answers, *, shrink=True, **settings):
    """Denoise with one list of tokens for each step; what each step saw and was fed."""
    script, seen, draws = iter(answers), [], CountingDraws()

    def predict(canvas, previous):
        seen.append((canvas.shape[1], None if previous is None else previous.shape[1]))
        return certain_of(next(script)[: canvas.shape[1]], V, height=5.0)

    steps = denoise(
        predict,
        draws,
        SamplerSettings(max_denoising_steps=len(answers), confidence_threshold=1e-9, **settings),
        canvas_length=L,
        vocab_size=V,
        shrink_at=frozenset({END}) if shrink else frozenset(),
    )
    return seen, list(steps)


def ending(at, token=4):
    return [token] * at + [END] * (L - at)


def test_a_canvas_is_cut_once_two_steps_agree_on_the_end():
    seen, steps = run([ending(20), ending(9), ending(9, token=5), ending(9), ending(9)])
    assert seen == [(40, None), (40, 40), (40, 40), (16, 16), (16, 16)]
    assert [step.entropy.shape[1] for step in steps] == [40, 40, 40, 16, 16]
    assert steps[-1].argmax_canvas[0].tolist() == [4] * 9 + [END] * 7


@pytest.mark.parametrize(("end", "length"), [(0, 16), (15, 16), (16, 24), (30, 32), (33, 40)])
def test_the_end_token_stays_in_the_canvas(end, length):
    seen, steps = run([ending(end)] * 3)
    assert seen[-1][0] == length
    assert steps[-1].argmax_canvas[0].tolist().index(END) == end


def test_without_an_end_nothing_is_cut_and_an_end_that_goes_away_loses_no_text():
    assert run([[4] * L] * 4)[0][-1] == (40, 40)
    _, steps = run([ending(9), ending(9), [5] * L, [5] * L])
    assert steps[-1].argmax_canvas[0].tolist() == [5] * 16


def test_it_is_off_unless_it_is_asked_for():
    assert {length for length, _ in run([ending(3)] * 4, shrink=False)[0]} == {40}


def test_cutting_leaves_the_kept_positions_as_they_were():
    """The logits fed back and the next canvas are the first part of what they would have been."""
    cut, _ = run([ending(9)] * 2), None
    whole = run([ending(9)] * 2, shrink=False)
    for one, other in zip(cut[1], whole[1], strict=True):
        np.testing.assert_array_equal(np.array(one.entropy), np.array(other.entropy))
        assert mx.array_equal(one.argmax_canvas, other.argmax_canvas)


def test_a_cut_canvas_may_be_asked_for_in_other_threads(runtime):
    asked = {"stability_threshold": 4, "shrink_canvas": True, "stop_rule": "plateau"}
    events, seen = runtime.stream("2 + 2 =", GenerationOptions(seed=1, **asked)), []
    for _ in range(60):
        thread = threading.Thread(target=lambda: seen.extend(islice(events, 1)))
        thread.start()
        thread.join()
    assert seen[-1].result.text == "2 + 2 = 4"


def test_the_demo_answers_with_shrinking_canvases(runtime):
    asked = {"stability_threshold": 4, "shrink_canvas": True}
    assert lengths(runtime, "2 + 2 =", **asked)[-1] == 16
    result = runtime.generate("2 + 2 =", GenerationOptions(seed=1, **asked))
    assert (result.text, result.finish_reason) == ("2 + 2 = 4", "stop")
    story = runtime.generate(STORY, GenerationOptions(seed=1, shrink_canvas=True))
    assert (story.finish_reason, story.stats.canvases > 1) == ("stop", True)
