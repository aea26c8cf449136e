"""Batches: every answer is the one it is alone, and the passes are shared."""

import threading

import mlx.core as mx
import pytest
from session_talks import random_runtime

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import device
from mlx_diffusiongemma.batch import BatchRequest
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.errors import ConfigError, GenerationError, PromptError
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.released import released_values

STORY = "Tell me a story about a {}."
MIXED = [
    (STORY.format("frog"), {"max_tokens": 90}),
    (STORY.format("dog"), {"stop": (".",)}),
    ("2 + 2 =", {}),
    (STORY.format("fox"), {"max_tokens": 33, "canvas_length": 32}),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], {}),
    (STORY.format("bear"), {"preset": "fast"}),
    (STORY.format("owl"), {"max_denoising_steps": 6, "sampler": "argmax"}),
    ("Tell me a very long story about a cat and a mouse and their house.", {"max_tokens": 128}),
]
PROMPTS = [prompt for prompt, _ in MIXED]
OPTIONS = [GenerationOptions(seed=seed, **asked) for seed, (_, asked) in enumerate(MIXED)]


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


@pytest.fixture(scope="module")
def alone(runtime):
    return [runtime.generate(*one) for one in zip(PROMPTS, OPTIONS, strict=True)]


class Passes:
    """What the model is asked, while `watched`: rows of every denoising step, passes of prefill."""

    def __init__(self, model, patch):
        self.steps, self.reads = [], 0
        predict, prefill = model.predict_rows, model.prefill_rows

        def watched_predict(canvases, caches, beliefs):
            self.steps.append(len(canvases))
            return predict(canvases, caches, beliefs)

        def watched_prefill(rows, caches):
            passes = prefill(rows, caches)
            self.reads += passes
            return passes

        patch.setattr(model, "predict_rows", watched_predict)
        patch.setattr(model, "prefill_rows", watched_prefill)

    @property
    def count(self):
        return len(self.steps) + self.reads


@pytest.fixture
def passes(runtime, monkeypatch):
    return Passes(runtime.model, monkeypatch)


def said(result):
    return result.text, result.token_ids, result.finish_reason, result.stats.denoising_steps


def passes_of(result):
    """Prompt, steps, and each block but the last read into the cache."""
    return 1 + sum(result.stats.denoising_steps) + result.stats.canvases - 1


@pytest.mark.parametrize("rows", [8, 3])
def test_mixed_prompts_give_the_texts_of_single_runs(runtime, alone, passes, rows):
    results = runtime.generate_batch(PROMPTS, OPTIONS, rows=rows)
    assert [said(result) for result in results] == [said(result) for result in alone]
    assert [result.stats.seed for result in results] == list(range(8))
    # A row that is finished takes part in nothing any more, and another one takes its place.
    assert sum(passes.steps) == sum(sum(result.stats.denoising_steps) for result in alone)
    assert max(passes.steps) == rows
    if rows == 8:  # all begin together, and none misses a step because it had a block to read
        assert len(passes.steps) == max(sum(result.stats.denoising_steps) for result in alone)


def test_eight_prompts_take_a_quarter_of_the_passes(runtime, passes):
    animals = ("frog", "dog", "fox", "bear", "owl", "cat", "mouse", "bird")
    prompts = [STORY.format(animal) for animal in animals]
    options = [
        GenerationOptions(seed=seed, max_tokens=length, max_denoising_steps=6)
        for seed, length in enumerate((40, 64, 90, 64, 128, 100, 64, 128))
    ]
    single = [runtime.generate(*one) for one in zip(prompts, options, strict=True)]
    requests = list(map(BatchRequest, prompts, options))
    answers = list(runtime.stream_batch(requests))
    assert max(answer.passes for answer in answers) == passes.count
    assert passes.count <= sum(map(passes_of, single)) / 4


def test_random_models_and_rows_that_come_and_go(tmp_path):
    """Prompts around the window of 16, several canvases, more requests than rows."""
    runtime = random_runtime(tmp_path, seed=3, window=16)
    prompts = ["a " * length for length in (1, 3, 5, 8, 9, 14, 2, 30, 1)]
    options = [
        GenerationOptions(seed=n, max_tokens=8 * (1 + n % 4), max_denoising_steps=2 + n % 3)
        for n in range(len(prompts))
    ]
    alone = [runtime.generate(*one) for one in zip(prompts, options, strict=True)]
    results = runtime.generate_batch(prompts, options, rows=4)
    assert [said(result) for result in results] == [said(result) for result in alone]


def test_a_row_from_left_to_right_goes_along(runtime):
    options = [
        GenerationOptions(mode="ar", max_tokens=12),
        GenerationOptions(seed=1, max_tokens=40, max_denoising_steps=4),
    ]
    prompts = [STORY.format("frog"), STORY.format("dog")]
    results = runtime.generate_batch(prompts, options)
    alone = [runtime.generate(*one) for one in zip(prompts, options, strict=True)]
    assert [said(result) for result in results] == [said(result) for result in alone]
    assert results[0].stats.mode == "ar"


def test_a_row_under_a_constraint_goes_along(runtime):
    """Its loop asks for more to be evaluated between two passes than the others do."""
    year = CanvasConstraint.regex("[0-9]{4}")
    options = [
        GenerationOptions(seed=1, constraint=year, max_denoising_steps=4),
        GenerationOptions(seed=1, max_tokens=40, max_denoising_steps=4),
        GenerationOptions(seed=2, constraint=year, max_denoising_steps=6),
    ]
    prompts = ["When was that?", STORY.format("dog"), "And that?"]
    results = runtime.generate_batch(prompts, options)
    alone = [runtime.generate(*one) for one in zip(prompts, options, strict=True)]
    assert [said(result) for result in results] == [said(result) for result in alone]
    assert all(result.text.isdigit() and len(result.text) == 4 for result in results[::2])


# Errors -----------------------------------------------------------------------------------------


def test_a_row_that_fails_reports_its_error_and_the_others_go_on(runtime, alone, monkeypatch):
    predict = runtime.model.predict_rows
    lengths = [len(runtime.tokenizer.encode_prompt(prompt)) for prompt in PROMPTS]

    def spoilt(canvases, caches, beliefs):
        logits = predict(canvases, caches, beliefs)
        spoil = [cache.offset == lengths[7] for cache in caches]
        return [
            one._replace(raw=one.raw * mx.nan) if bad else one
            for one, bad in zip(logits, spoil, strict=True)
        ]

    monkeypatch.setattr(runtime.model, "predict_rows", spoilt)
    prompts = [*PROMPTS, "", [{"role": "wizard", "content": "?"}]]
    results = runtime.generate_batch(prompts, [*OPTIONS, OPTIONS[0], OPTIONS[0]], rows=3)
    assert [said(result) for result in results[:7]] == [said(result) for result in alone[:7]]
    assert isinstance(results[7], GenerationError)
    assert "canvas 1, denoising step 1" in str(results[7])
    assert isinstance(results[8], PromptError)
    assert isinstance(results[9], PromptError) and "wizard" in str(results[9])


def test_an_answer_longer_than_the_context_fails_alone(runtime):
    most = runtime.config.max_position_embeddings
    results = runtime.generate_batch(["word " * most, "2 + 2 ="], OPTIONS[:2])
    assert isinstance(results[0], PromptError) and "tokens" in str(results[0])
    assert results[1].finish_reason == "stop"


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "8"])
def test_rows_that_are_no_number_of_rows_are_refused(runtime, rows):
    with pytest.raises(ConfigError, match=f"rows is {rows!r}"):
        runtime.generate_batch(["Hello"], rows=rows)


def test_what_is_no_list_of_prompts_or_requests_is_refused(runtime):
    with pytest.raises(ConfigError, match="prompts is 'Hello'"):
        runtime.generate_batch("Hello")
    for request in ("Hello", OPTIONS[0]), None:
        with pytest.raises(ConfigError, match="a request is"):
            next(runtime.stream_batch([request]))


def test_options_for_other_prompts_are_refused(runtime):
    with pytest.raises(ConfigError, match="2 options are given for 1 prompts"):
        runtime.generate_batch(["Hello"], OPTIONS[:2])
    assert runtime.generate_batch([]) == []


# Beside others ----------------------------------------------------------------------------------


def test_closing_cancels_and_leaves_nothing_behind(runtime, alone):
    answers = runtime.stream_batch(list(map(BatchRequest, PROMPTS, OPTIONS)), rows=2)
    next(answers)
    answers.close()
    assert said(runtime.generate(PROMPTS[0], OPTIONS[0])) == said(alone[0])


def test_requests_are_taken_when_a_row_is_free(runtime):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield BatchRequest("2 + 2 =", GenerationOptions(seed=len(taken)))

    answers = runtime.stream_batch(endless(), rows=2)
    assert [next(answers).index for _ in range(5)]
    assert len(taken) <= 7
    answers.close()


def test_batches_in_threads_and_a_single_answer_beside_them(runtime, alone):
    results = {}
    works = [
        lambda: results.update(one=runtime.generate_batch(PROMPTS[:4], OPTIONS[:4], rows=2)),
        lambda: results.update(two=runtime.generate_batch(PROMPTS[4:], OPTIONS[4:], rows=3)),
        lambda: results.update(three=[runtime.generate(PROMPTS[0], OPTIONS[0])]),
    ]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [said(one) for one in results["one"] + results["two"]] == [said(one) for one in alone]
    assert said(results["three"][0]) == said(alone[0])


# Memory -----------------------------------------------------------------------------------------


@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="about the CPU back-end")
def test_another_row_takes_what_the_estimate_says(tmp_path):
    """At a vocabulary of 16,384, where logits are most of it."""
    runtime = random_runtime(tmp_path, seed=3, window=16, canvas_length=32, vocab_size=16_384)
    options = GenerationOptions(seed=1, max_tokens=32, max_denoising_steps=2)
    peaks = []
    for rows in (2, 6):
        results = runtime.generate_batch(["a"] * rows, options, rows=rows)
        peaks.append(results[-1].stats.peak_memory_bytes)
    each = (peaks[1] - peaks[0]) / 4
    # A full layer's cache has room for 512 tokens, however few there are.
    need = device.memory_need(runtime.config, [], mx.float32, 512 - 32)
    spare = 100 * each
    assert 70 <= device.rows_that_fit(runtime.config, need, need.total + int(spare)) - 1 <= 110


def test_no_more_rows_than_fit_and_never_none():
    config = parse_config(released_values())
    need = device.memory_need(config, [], mx.bfloat16, 4096)
    another = need.caches + 4 * 256 * 262_144
    fits = [
        device.rows_that_fit(config, need, need.total + extra)
        for extra in (-1, 0, another - 1, another, 5 * another)
    ]
    assert fits == [1, 1, 1, 2, 6]
