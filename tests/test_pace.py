"""Measured times: what is taken when little is known, and what follows from them."""

from dataclasses import replace

import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import pace as pace_module
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings
from mlx_diffusiongemma.pace import Pace, left_to_right_is_faster, steps_within

SUM = "2 + 2 ="


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


@pytest.fixture
def fresh(runtime, monkeypatch):
    """The runtime as if it had never answered; times are what `give` says."""
    answers = {"step": 0.1, "token": 0.02}
    monkeypatch.setattr(runtime._responder.pace, "steps", {})
    monkeypatch.setattr(runtime._responder.pace, "tokens", {})
    monkeypatch.setattr(runtime._responder.pace, "passes", None)
    monkeypatch.setattr(pace_module, "_time_step", lambda model, length: answers["step"])
    monkeypatch.setattr(pace_module, "_time_token", lambda model: answers["token"])
    return answers


def test_steps_that_fit_are_at_least_one_and_at_most_those_allowed():
    assert [steps_within(s, 0.1, 5) for s in (0.01, 0.1, 0.35, 0.5, 9.0)] == [1, 1, 3, 5, 5]


def test_a_deadline_allows_the_steps_that_fit_and_the_seed_repeats_them(runtime, fresh):
    options = GenerationOptions(seed=1, deadline_ms=350, confidence_threshold=1e-9)
    result = runtime.generate(SUM, options)
    assert result.stats.denoising_steps == (3,)
    assert result.stats.max_denoising_steps == 3
    same = replace(options, deadline_ms=None, max_denoising_steps=3)
    assert runtime.generate(SUM, same).token_ids == result.token_ids


def test_without_a_deadline_nothing_is_measured(runtime, fresh, monkeypatch):
    monkeypatch.setattr(pace_module, "_time_step", lambda *_: pytest.fail("measured"))
    result = runtime.generate(SUM, GenerationOptions(seed=1))
    assert result.stats.max_denoising_steps == 24
    assert runtime._responder.pace.passes == sum(result.stats.denoising_steps)


def test_answers_take_the_place_of_the_first_measurement(runtime, fresh):
    seen = runtime._responder.pace
    runtime.generate(SUM, GenerationOptions(seed=1, deadline_ms=1000))
    runtime.generate(SUM, GenerationOptions(mode="ar"))
    size = 3  # 4 to 7 tokens would be of another size than the prompt's
    assert set(seen.steps) > {(32, 0)} and (32, size) not in seen.steps
    assert len(seen.tokens) == 1 and 0 not in seen.tokens


def test_times_are_kept_by_the_size_of_the_prompt_and_the_nearest_is_taken():
    pace = Pace(steps={(32, 4): 1.0, (32, 10): 2.0, (16, 4): 9.0}, tokens={4: 0.1, 10: 0.2})
    assert [pace.step_seconds(None, 32, n) for n in (0, 15, 100, 999, 10**6)] == [1, 1, 1, 2, 2]
    assert pace.token_seconds(None, 900) == 0.2


@pytest.mark.parametrize(
    ("max_tokens", "faster"), [(1, True), (29, True), (31, False), (33, True), (640, False)]
)
def test_the_rule_of_auto(runtime, max_tokens, faster):
    """Canvases of 32 in 24 / 2 steps of 0.25 s, so 3 s each: as long as 30 tokens of 0.1 s."""
    pace = Pace(steps={(32, 0): 0.25}, tokens={0: 0.1})
    options = GenerationOptions(mode="auto", max_tokens=max_tokens)
    settings = SamplerSettings(max_denoising_steps=24)
    assert left_to_right_is_faster(pace, runtime.model, options, settings, 0) == faster


def test_auto_counts_the_steps_that_canvases_took(runtime):
    times = {"steps": {(32, 0): 0.25}, "tokens": {0: 0.1}}
    options = GenerationOptions(mode="auto", max_tokens=20)  # 2 s left to right

    def chooses(passes, allowed=24):
        settings = SamplerSettings(max_denoising_steps=allowed)
        pace = Pace(**times, passes=passes)
        return left_to_right_is_faster(pace, runtime.model, options, settings, 0)

    assert [chooses(passes) for passes in (2, 7, 9, 24)] == [False, False, True, True]
    assert not chooses(24, allowed=4)


def test_auto_says_what_it_chose_and_both_read_their_own_settings(runtime, fresh):
    options = GenerationOptions(
        mode="auto", max_tokens=12, seed=1, temperature=0.0, max_denoising_steps=20
    )
    written = runtime.generate(SUM, options)
    assert (written.stats.mode, written.stats.max_denoising_steps) == ("ar", None)
    assert written.token_ids == runtime.generate(SUM, GenerationOptions(mode="ar")).token_ids
    runtime._responder.pace.tokens.clear()
    fresh["token"] = 9.0
    diffused = runtime.generate(SUM, options)
    assert (diffused.stats.mode, diffused.stats.max_denoising_steps) == ("diffusion", 20)


def test_the_real_measurements_are_of_passes(runtime):
    for seconds in (
        Pace().step_seconds(runtime.model, 32, 10),
        Pace().token_seconds(runtime.model, 10),
    ):
        assert 1e-4 < seconds < 10
