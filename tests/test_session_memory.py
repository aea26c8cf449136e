"""What sessions may keep: reported, bounded, and given up by the one that was used longest ago."""

import gc

import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma.options import GenerationOptions

QUICK = GenerationOptions(seed=1, max_tokens=4, max_denoising_steps=1)


@pytest.fixture
def runtime():
    return dg.load("demo")


def take_turn(session, text="2 + 3 ="):
    session.generate(text, QUICK)


def test_a_session_reports_its_memory(runtime):
    session = runtime.session()
    assert (session.memory_bytes, session.cached_tokens) == (0, 0)
    take_turn(session)
    layers = session._cache.kv.layers
    assert session.memory_bytes == sum(a.nbytes for layer in layers for a in layer.arrays) > 1e5
    assert session.cached_tokens > 5
    session.clear()
    assert (session.memory_bytes, session.cached_tokens) == (0, 0)
    assert len(session.messages) == 2


def test_above_the_limit_the_oldest_cache_goes_and_its_history_stays(runtime):
    sessions = [runtime.session() for _ in range(3)]
    for session in sessions:
        take_turn(session)
    one = sessions[0].memory_bytes
    assert runtime.session_memory.total_bytes == 3 * one
    runtime.session_memory.limit_bytes = 3 * one
    take_turn(sessions[0], "Hello")
    take_turn(runtime.session())  # gone, with its memory, as soon as nobody holds it
    assert [session.memory_bytes > 0 for session in sessions] == [True, False, True]
    assert runtime.session_memory.total_bytes <= 3 * one
    said = sessions[1].messages
    event = next(sessions[1].stream("Hello", QUICK))
    assert event.cached_tokens == 0
    assert sessions[1].messages == said


def test_a_session_that_is_answering_keeps_its_cache(runtime):
    runtime.session_memory.limit_bytes = 0
    busy, other = runtime.session(), runtime.session()
    events = busy.stream("2 + 3 =", QUICK)
    next(events)
    take_turn(other)
    assert busy.memory_bytes > 0
    assert [type(event).__name__ for event in events][-1] == "Finished"
    take_turn(runtime.session())
    assert busy.memory_bytes == other.memory_bytes == 0


def test_a_session_that_is_gone_keeps_nothing(runtime):
    session = runtime.session()
    take_turn(session)
    assert runtime.session_memory.total_bytes > 0
    del session
    gc.collect()
    assert runtime.session_memory.total_bytes == 0


def test_at_first_sessions_may_have_half_of_what_the_weights_leave(runtime):
    limit = runtime.session_memory.limit_bytes
    assert 0 < limit <= dg.runtime.device.available_memory() // 2


def test_one_answer_at_a_time(runtime):
    session = runtime.session()
    first = session.stream("2 + 3 =", QUICK)
    next(first)
    with pytest.raises(dg.GenerationError, match="answering another message"):
        next(session.stream("Hello", QUICK))
    with pytest.raises(dg.GenerationError, match="answering another message"):
        session.clear()
    first.close()
    take_turn(session)


def test_a_consumer_that_stops_at_the_result_has_let_the_session_go(runtime):
    session = runtime.session()
    events = session.stream("2 + 3 =", QUICK)
    while not isinstance(next(events), dg.Finished):
        pass
    assert len(session.messages) == 2
    take_turn(session)


def test_max_context_bounds_prompt_and_answer(runtime):
    length = runtime.config.canvas_length
    session = runtime.session(max_context=3 * length)
    story = GenerationOptions(seed=1, max_denoising_steps=4)
    result = session.generate("Tell me a story about a frog.", story)
    assert result.finish_reason == "length"
    assert session.cached_tokens <= 3 * length
    with pytest.raises(dg.PromptError, match="tokens") as raised:
        session.generate("frog " * 3 * length, story)
    assert f"at most {2 * length}" in raised.value.hint


@pytest.mark.parametrize(
    "limits", [{"max_context": 0}, {"rewind_tokens": -1}, {"rewind_tokens": 1.5}]
)
def test_limits_that_are_none_are_refused(runtime, limits):
    (name,) = limits
    with pytest.raises(dg.ConfigError, match=name):
        runtime.session(**limits)
