"""Mode "ar" through the runtime: what is streamed is returned, in any thread and session."""

import threading
from itertools import islice

import mlx.core as mx
import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import Finished, GenerationOptions, PromptProcessed, TokenWritten
from mlx_diffusiongemma.draws import RecordingDraws, ReplayedDraws, SeededDraws
from mlx_diffusiongemma.errors import ConfigError

STORY = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


def ask(mode="ar", **options):
    return GenerationOptions(mode=mode, **options)


def test_the_stream_adds_up_to_the_result(runtime):
    events = list(runtime.stream(STORY, ask(max_tokens=40)))
    written = [event for event in events if isinstance(event, TokenWritten)]
    result = events[-1].result
    assert isinstance(events[0], PromptProcessed) and isinstance(events[-1], Finished)
    assert len(written) == len(result.token_ids) == 40
    assert "".join(event.text for event in written) == result.text
    assert sum(bool(event.text) for event in written) > 10
    stats = result.stats
    assert (stats.mode, stats.denoising_steps, stats.tokens_per_step) == ("ar", (), 1.0)
    assert min(stats.prefill_seconds, stats.denoising_seconds) > 0


def test_a_stop_string_ends_the_answer_within_a_token_and_nothing_leaks(runtime):
    whole = runtime.generate(STORY, ask(max_tokens=40)).text
    stop = whole[21:29]
    events = list(runtime.stream(STORY, ask(stop=(stop,))))
    result = events[-1].result
    assert result.text == whole[: whole.index(stop)]
    assert result.finish_reason == "stop"
    streamed = "".join(event.text for event in events if isinstance(event, TokenWritten))
    assert streamed == result.text


def test_a_thought_goes_to_its_channel_token_by_token(runtime):
    events = list(runtime.stream("What is 3 + 4?", ask(thinking=True)))
    thoughts = "".join(event.thought for event in events if isinstance(event, TokenWritten))
    assert thoughts == events[-1].result.thought == "Add 3 and 4: 7."
    assert events[-1].result.text == "3 + 4 = 7"


def test_a_seed_repeats_a_drawn_text_and_a_trace_replays_it(runtime):
    options = ask(temperature=1.5, top_p=0.99, top_k=500, min_p=0.001, seed=4, max_tokens=30)
    recorder = RecordingDraws(SeededDraws(4))
    first = runtime.generate(STORY, options, draws=recorder)
    mx.random.seed(1)
    assert runtime.generate(STORY, options).token_ids == first.token_ids
    replayed = runtime.generate(STORY, options, draws=ReplayedDraws(recorder.trace))
    assert replayed.token_ids == first.token_ids
    other = runtime.generate(STORY, ask(temperature=1.5, seed=5, max_tokens=30))
    assert other.token_ids != first.token_ids


def test_every_token_may_be_asked_for_in_another_thread(runtime):
    options = ask(temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, seed=4, max_tokens=5)
    events = runtime.stream(STORY, options)
    seen = []
    for _ in range(60):
        thread = threading.Thread(target=lambda: seen.extend(islice(events, 1)))
        thread.start()
        thread.join()
    assert seen[-1].result.token_ids == runtime.generate(STORY, options).token_ids


def test_a_session_reads_only_what_is_new(runtime):
    session = runtime.session()
    options = ask()
    first = session.generate("My name is Tom.", options)
    turn = list(session.stream("What is my name?", options))
    messages = session.messages[:-1]
    assert turn[0].cached_tokens >= first.stats.prompt_tokens + first.stats.generated_tokens - 4
    assert turn[-1].result.token_ids == runtime.generate(messages, options).token_ids
    diffused = session.generate("Who are you?", GenerationOptions(seed=1))
    cold = runtime.generate(session.messages[:-1], GenerationOptions(seed=1))
    assert diffused.token_ids == cold.token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature is 0.5 and mode is 'diffusion'"),
        ({"top_k": 5}, "top_k is 5 and mode is 'diffusion'"),
        ({"mode": "ar", "max_denoising_steps": 5}, "max_denoising_steps is 5 and mode is 'ar'"),
        ({"mode": "gpt"}, "mode is 'gpt'"),
        ({"mode": "ar", "temperature": -1}, "temperature is -1"),
        ({"mode": "ar", "top_p": 0}, "top_p is 0"),
        ({"mode": "ar", "top_p": 1.01}, "top_p is 1.01"),
        ({"mode": "ar", "min_p": 1.5}, "min_p is 1.5"),
        ({"mode": "ar", "top_k": 2.0}, "top_k is 2.0"),
    ],
)
def test_settings_that_nothing_would_read_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GenerationOptions(**options)


def test_the_ends_of_the_ranges_are_allowed():
    GenerationOptions(mode="ar", temperature=0, top_p=1, top_k=0, min_p=1)
