"""From a prompt to a result: what is streamed is what is returned, and nothing outlives a call."""

import threading
from importlib.resources import files
from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_diffusiongemma as dg
import mlx_diffusiongemma.runtime
from mlx_diffusiongemma import (
    BlockCommitted,
    DenoisingStep,
    Finished,
    GenerationOptions,
    PromptProcessed,
    RecordingDraws,
    ReplayedDraws,
    SeededDraws,
)

STORY = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


@pytest.fixture(scope="module")
def story(runtime):
    return runtime.generate(STORY, GenerationOptions(seed=1))


def test_the_demo_answers(runtime):
    result = runtime.generate("2 + 2 =", GenerationOptions(max_tokens=64, seed=1))
    assert "4" in result.text
    assert result.finish_reason == "stop"


def test_the_stream_adds_up_to_the_result(runtime, story):
    events = list(runtime.stream(STORY, GenerationOptions(seed=1)))
    blocks = [event for event in events if isinstance(event, BlockCommitted)]
    kinds = [type(event) for event in events if not isinstance(event, DenoisingStep)]
    assert kinds == [PromptProcessed, *[BlockCommitted] * len(blocks), Finished]
    assert isinstance(events[0], PromptProcessed)
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert "".join(block.text for block in blocks) == result.text == story.text
    assert tuple(t for block in blocks for t in block.token_ids) == result.token_ids
    assert [block.finish_reason for block in blocks][-1] == result.finish_reason == "stop"
    assert len(blocks) >= 2


def test_stats_agree_with_the_events(runtime):
    events = list(runtime.stream(STORY, GenerationOptions(seed=2)))
    stats = events[-1].result.stats
    steps = [event for event in events if isinstance(event, DenoisingStep)]
    blocks = [event for event in events if isinstance(event, BlockCommitted)]
    assert sum(stats.denoising_steps) == len(steps)
    assert stats.canvases == len(blocks)
    assert stats.converged == tuple(block.converged for block in blocks)
    assert stats.prompt_tokens == events[0].prompt_tokens
    assert stats.generated_tokens == len(events[-1].result.token_ids)
    assert stats.tokens_per_step == stats.generated_tokens / len(steps)
    assert stats.seed == 2
    seconds = [stats.prefill_seconds, stats.denoising_seconds, stats.commit_seconds]
    assert min(stats.load_seconds, *seconds) > 0
    assert stats.tokens_per_second == stats.generated_tokens / sum(seconds[1:])
    shares = [stats.time_shares[part] for part in ("prefill", "denoising", "commit")]
    assert shares == pytest.approx([spent / sum(seconds) for spent in seconds])
    assert stats.truncated_by is None
    assert stats.peak_memory_bytes > 1e6
    assert set(stats.to_dict()) > {"canvases", "tokens_per_step", "tokens_per_second"}


def test_a_seed_that_was_drawn_repeats_the_answer(runtime):
    first = runtime.generate(STORY)
    again = runtime.generate(STORY, GenerationOptions(seed=first.stats.seed))
    assert again.token_ids == first.token_ids
    assert runtime.generate(STORY).stats.seed != first.stats.seed


def test_seeds_differ(runtime, story):
    assert runtime.generate(STORY, GenerationOptions(seed=5)).token_ids != story.token_ids


def test_looking_at_every_step_changes_nothing(runtime, story):
    for event in runtime.stream(STORY, GenerationOptions(seed=1)):
        if isinstance(event, DenoisingStep):
            assert event.accepted.any()
            mx.random.uniform(shape=(5,))
            event.argmax_canvas.tolist()
        if isinstance(event, Finished):
            assert event.result.token_ids == story.token_ids


@pytest.mark.parametrize("stop_after", [1, 2, 9, 16, 17])
def test_a_cancelled_generation_leaves_nothing_behind(runtime, story, stop_after):
    stream = runtime.stream(STORY, GenerationOptions(seed=9))
    for _, _ in zip(range(stop_after), stream, strict=False):
        pass
    stream.close()
    assert runtime.generate(STORY, GenerationOptions(seed=1)).token_ids == story.token_ids


def test_a_recorded_trace_replays(runtime):
    recorder = RecordingDraws(SeededDraws(3))
    first = runtime.generate(STORY, draws=recorder)
    again = runtime.generate(STORY, draws=ReplayedDraws(recorder.trace))
    assert again.token_ids == first.token_ids


@pytest.mark.parametrize("max_tokens", [1, 31, 32, 33, 50])
def test_max_tokens_is_exact_and_said(runtime, story, max_tokens):
    result = runtime.generate(STORY, GenerationOptions(seed=1, max_tokens=max_tokens))
    assert len(result.token_ids) == max_tokens
    assert result.finish_reason == "length"
    assert story.text.startswith(result.text)


def test_a_stop_string_across_the_canvas_border_never_leaks(runtime, story):
    border = len(runtime.tokenizer.decode(story.token_ids[:32]))
    stop = story.text[border - 4 : border + 4]
    first = story.text.index(stop)
    events = list(runtime.stream(STORY, GenerationOptions(seed=1, stop=(stop,))))
    result = events[-1].result
    assert result.text == story.text[:first]
    assert result.finish_reason == "stop"
    streamed = "".join(event.text for event in events if isinstance(event, BlockCommitted))
    assert streamed == result.text
    assert len(result.token_ids) < len(story.token_ids)


def test_a_stop_string_saves_the_canvases_that_would_follow(runtime, story):
    word = story.text.split()[3]
    result = runtime.generate(STORY, GenerationOptions(seed=1, stop=(word,)))
    assert result.stats.canvases == 1


def test_messages_and_a_plain_prompt_are_the_same_turn(runtime, story):
    messages = [{"role": "user", "content": STORY}]
    assert runtime.generate(messages, GenerationOptions(seed=1)).token_ids == story.token_ids


def test_options_reach_the_sampler(runtime):
    def steps(**asked):
        options = GenerationOptions(seed=1, max_tokens=32, **asked)
        events = runtime.stream(STORY, options)
        return [event for event in events if isinstance(event, DenoisingStep)]

    assert len(steps(max_denoising_steps=3)) == 3
    assert steps(max_denoising_steps=3)[0].max_denoising_steps == 3
    assert len(steps(max_denoising_steps=9, confidence_threshold=1e-9)) == 9
    wide = steps(max_denoising_steps=1, entropy_bound=1e6)
    assert wide[0].accepted.all()
    assert len(steps(stability_threshold=0, confidence_threshold=50.0)) == 1


def test_a_bad_prompt_is_refused_at_once(runtime):
    with pytest.raises(dg.PromptError):
        runtime.stream([{"role": "user", "content": [{"type": "image"}]}])


def test_loading_in_one_thread_and_generating_in_another(story):
    loaded, answers = [], []
    for work in (
        lambda: loaded.append(dg.load("demo")),
        lambda: answers.append(loaded[0].generate(STORY, GenerationOptions(seed=1))),
    ):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert answers[0].token_ids == story.token_ids


def test_every_event_may_be_asked_for_and_read_in_another_thread(runtime):
    options = GenerationOptions(seed=1, max_tokens=40, max_denoising_steps=3)
    draws = RecordingDraws(SeededDraws(1))
    events = runtime.stream(STORY, options, draws=draws)
    seen, before = [], 0
    while not (seen and isinstance(seen[-1], Finished)):
        thread = threading.Thread(target=lambda: seen.append(next(events)))
        thread.start()
        thread.join()
        assert len(seen) == (before := before + 1), "the thread raised"
    for step in (event for event in seen if isinstance(event, DenoisingStep)):
        for array in (step.argmax_canvas, step.accepted, step.entropy):
            array.tolist()
    for drawn in (*draws.trace.candidates, *draws.trace.renoise):
        drawn.tolist()
    assert seen[-1].result.token_ids == runtime.generate(STORY, options).token_ids


def test_the_model_alone_needs_no_tokenizer(tmp_path):
    demo = files("mlx_diffusiongemma").joinpath("demo")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(demo.joinpath(name).read_bytes())
    model = dg.load_model(tmp_path)
    cache = model.make_cache()
    model.prefill(mx.array([[2, 105, 40]], mx.int32), cache)
    canvas = mx.zeros((1, model.config.canvas_length), mx.int32)
    logits = model.denoise(canvas, cache, None)
    assert logits.shape == (1, model.config.canvas_length, model.config.vocab_size)
    assert logits.dtype == mx.float32
    assert mx.abs(logits).max().item() <= model.config.final_logit_softcapping
    assert model.denoise(canvas, cache, logits).shape == logits.shape


def test_a_wrong_dtype_is_refused_before_anything_is_downloaded(monkeypatch):
    monkeypatch.setattr(dg.runtime.hub, "resolve", lambda *_, **__: pytest.fail("resolved"))
    with pytest.raises(dg.ConfigError, match="dtype is 'int8'"):
        dg.load("org/name", dtype="int8")


@pytest.mark.parametrize("force", [False, True])
def test_a_download_larger_than_the_memory_is_refused_before_it_starts(monkeypatch, force):
    def resolve(name, *, on_plan, **_):
        on_plan(SimpleNamespace(total_bytes=10**18))
        raise dg.HubError("downloading")

    told = []
    monkeypatch.setattr(dg.runtime.hub, "resolve", resolve)
    expected = dg.HubError if force else dg.MemoryNeedError
    with pytest.raises(expected):
        dg.load("org/name", force=force, on_plan=told.append)
    assert told[0].total_bytes == 10**18


@pytest.mark.parametrize("options", [None, {"seed": 1}])
def test_options_of_another_type_are_refused(runtime, options):
    with pytest.raises(dg.ConfigError, match="GenerationOptions|options are"):
        runtime.stream("2 + 2 =", options)


def test_the_demo_models_network_loads_by_its_name():
    assert dg.load_model("demo").config.canvas_length > 0
    with pytest.raises(dg.HubError, match="nowhere"):
        dg.load_model("./nowhere")
