"""Conversations: every turn is the answer of a cold run, and reads no token that it need not."""

import pytest
from session_talks import Talk, random_runtime, watched

import mlx_diffusiongemma as dg
from mlx_diffusiongemma.options import GenerationOptions

QUICK = GenerationOptions(max_tokens=20, max_denoising_steps=2)
FAR = 100_000  # goes back to anywhere


@pytest.fixture(scope="module")
def demo():
    return watched(dg.load("demo", dtype="float32"))


@pytest.fixture(scope="module", params=[8, 32], ids=lambda window: f"window {window}")
def random_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    return random_runtime(folder, seed=request.param, window=request.param)


def twelve_turns(talk: Talk, words: str) -> None:
    """New messages, edits, retries, cancelled and failed turns; every answer is checked."""
    first = talk.turn("Who are you?")
    talk.turn("2 + 3 =")
    retried = talk.turn(talk.turn(words).messages, seed=1)
    assert retried.prompt.cached_tokens == len(retried.prompt_ids)
    kept = talk.session.messages
    talk.interrupted("Sort 3 1 2", events=4)
    talk.turn("Sort 3 1 2")
    talk.turn([*kept[:4], {"role": "user", "content": words[:-30] + " cut short"}])
    talk.turn([*kept[:2], {"role": "user", "content": "2 + 5 ="}])
    talk.interrupted(first.messages, events=1)
    with pytest.raises(dg.PromptError):
        talk.session.stream([*kept, {"role": "user", "content": [{"type": "image"}]}])
    talk.turn([*kept, {"role": "user", "content": "Thank you."}])
    talk.turn("Hello")
    talk.turn([{"role": "system", "content": "Be brief."}, *talk.session.messages[:3]])
    talk.turn("Hello again", seed=3)
    talk.turn("Bye")


STORY = "Tell me a story about a frog who lives by a lake and meets an owl. " * 2


@pytest.mark.parametrize("rewind_tokens", [0, None])
def test_twelve_turns_of_the_demo_equal_cold_runs(demo, rewind_tokens):
    options = GenerationOptions(max_tokens=70, max_denoising_steps=8)
    twelve_turns(Talk(demo, options, rewind_tokens=rewind_tokens), STORY)


@pytest.mark.parametrize(("rewind_tokens", "repeats"), [(0, 3), (5, 1), (None, 2)])
def test_twelve_turns_of_random_models_equal_cold_runs(random_model, rewind_tokens, repeats):
    twelve_turns(Talk(random_model, QUICK, rewind_tokens=rewind_tokens), STORY * repeats)


def test_within_reach_nothing_is_read_twice(demo, random_model):
    for runtime in demo, random_model:
        talk = Talk(runtime, QUICK, rewind_tokens=FAR)
        turns = [talk.turn(STORY), talk.turn("2 + 3 ="), talk.turn("Hello")]
        turns.append(talk.turn(turns[0].messages))
        turns.append(talk.turn([{"role": "user", "content": STORY[:40]}]))
        assert [turn.prompt.reread_tokens for turn in turns] == [0] * 5


@pytest.mark.parametrize("length", [29, 31, 32, 33, 37])
def test_prompts_around_the_window(random_model, length):
    """Lengths near windows of 8 and 32, with the rewind ending at every offset of the second."""
    talk = Talk(random_model, QUICK)
    talk.turn("a" * length)
    talk.turn("a" * (length - 3))
    talk.turn([{"role": "user", "content": "a" * (length - 9)}])
    talk.turn([{"role": "user", "content": "a" * (length + 9)}])


def test_an_edit_of_a_marked_turn_reads_only_the_edit(demo):
    """A sliding layer has long lost that turn; the mark at its message has not."""
    talk = Talk(demo, QUICK, rewind_tokens=0)
    first = talk.turn("Who are you?")
    before = talk.session.messages
    talk.turn(STORY * 3)
    edited = talk.turn([*before, {"role": "user", "content": "And your sister?"}])
    assert edited.prompt.reread_tokens == 0
    assert edited.prompt.cached_tokens > len(first.prompt_ids)


def test_beyond_reach_reading_begins_at_the_nearest_mark(demo):
    talk = Talk(demo, QUICK, rewind_tokens=0)
    talk.turn(STORY * 3)
    edited = talk.turn([{"role": "user", "content": STORY * 2 + "And then?"}])
    assert edited.prompt.reread_tokens > 0
    assert 0 < edited.prompt.cached_tokens < len(edited.prompt_ids)


def test_the_history_is_what_was_said(demo):
    session = demo.session()
    assert session.messages == ()
    first = session.generate("2 + 3 =", GenerationOptions(seed=1))
    session.generate({"role": "user", "content": "Who are you?"}, GenerationOptions(seed=1))
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2
    assert session.messages[1]["content"] == first.text


def test_a_prompt_without_the_template_has_no_history(demo):
    session = demo.session()
    plain = GenerationOptions(seed=1, max_tokens=4, chat_template=False)
    first = session.generate("Once upon a time there was a frog", plain)
    assert session.messages == ()
    assert first.token_ids == demo.generate("Once upon a time there was a frog", plain).token_ids
    event = next(session.stream("Once upon a time there was a fox", plain))
    assert event.cached_tokens == event.prompt_tokens - 1


def test_stats_say_what_was_cached(demo):
    session = demo.session()
    session.generate("2 + 3 =", QUICK)
    stats = session.generate("Who are you?", QUICK).stats
    assert 0 < stats.cached_tokens < stats.prompt_tokens
    assert stats.reread_tokens == 0
    assert {"cached_tokens", "reread_tokens"} <= set(stats.to_dict())


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_cancelled_turn_leaves_no_trace(demo, steps):
    talk, plain = Talk(demo, QUICK), Talk(demo, QUICK)
    talk.turn("2 + 3 =")
    plain.turn("2 + 3 =")
    talk.interrupted(STORY, events=steps)
    assert talk.turn("Who are you?").result.text == plain.turn("Who are you?").result.text


def test_a_turn_that_fails_leaves_no_trace(demo, monkeypatch):
    talk = Talk(demo, QUICK)
    talk.turn("2 + 3 =")
    for error in RuntimeError("out of memory"), KeyboardInterrupt():
        said = talk.session.messages
        with monkeypatch.context() as patch:
            patch.setattr(demo.model, "prefill", _raises(error))
            with pytest.raises(type(error)):
                list(talk.session.stream(STORY, QUICK))
        talk.held = talk.held[: talk.session.cached_tokens]
        assert talk.session.messages == said
        talk.turn([*said, {"role": "user", "content": "Who are you?"}])


def test_an_interrupt_while_reading_keeps_the_chunks_that_were_read(demo, monkeypatch):
    talk = Talk(demo, QUICK)
    network = demo.model._model
    layer = network.model.decoder.layers[2]
    prefill, calls = type(layer).prefill, []

    def interrupted(self, *arguments):
        calls.append(self)
        if self is layer and len(calls) > 10:
            raise KeyboardInterrupt
        return prefill(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "prefill", interrupted)
        patch.setattr(demo.model, "prefill", lambda *args: network.prefill(*args, chunk_size=16))
        with pytest.raises(KeyboardInterrupt):
            next(talk.session.stream(STORY, QUICK))
    assert talk.session.cached_tokens == 2 * 16
    messages = [{"role": "user", "content": STORY}]
    talk.held = demo.tokenizer.encode_prompt(messages)[:32]
    assert talk.turn(STORY).prompt.cached_tokens == 32


def _raises(error):
    def fail(*arguments):
        raise error

    return fail
