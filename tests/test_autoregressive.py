"""Writing from left to right: exact lengths, ends, filters, the cache after every kind of stop."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from scripted import CountingDraws, ScriptedModel, certain_of
from tolerances import REREAD_LOGITS

from mlx_diffusiongemma import PromptProcessed, TokenWritten
from mlx_diffusiongemma.autoregressive import choose_token, token_loop
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.errors import GenerationError, PromptError
from mlx_diffusiongemma.generation import alone
from mlx_diffusiongemma.options import TokenSettings
from mlx_diffusiongemma.prefix_cache import PrefixCache

V, EOS = 40, frozenset({1, 2})
GREEDY = TokenSettings()
WARM = TokenSettings(temperature=1.0)


def config(context):
    return SimpleNamespace(canvas_length=16, vocab_size=V, max_position_embeddings=context)


class Writer(ScriptedModel):
    """Writes the given tokens, whatever was read; remembers what was read one by one in `fed`."""

    def __init__(self, tokens, context=1000):
        super().__init__(config(context), [])
        self.script = iter(tokens)
        self.fed = []

    def next_logits(self, token, cache):
        self.fed.append(token.item())
        cache.offset += 1
        wanted = next(self.script)
        return certain_of([wanted], V) if isinstance(wanted, int) else wanted


def run(tokens, *, max_tokens=1000, prompt=(5, 6, 7), context=1000, settings=GREEDY):
    model = Writer(tokens, context)
    model.cache = PrefixCache(model)
    loop = token_loop(
        model.config,
        list(prompt),
        model.cache,
        draws=SeededDraws(0),
        settings=settings,
        max_tokens=max_tokens,
        eos_token_ids=EOS,
    )
    return model, alone(loop, model.cache)


def answer(events):
    written = [event for event in events if isinstance(event, TokenWritten)]
    return [token for event in written for token in event.token_ids], written


def row(*probabilities):
    """Logits of a vocabulary with these probabilities, float32 [1, 1, V]."""
    return mx.log(mx.array([[probabilities]], mx.float32))


# Lengths and ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_max_tokens_is_exact_and_no_pass_is_wasted(max_tokens):
    model, events = run([9] * 50, max_tokens=max_tokens)
    tokens, written = answer(events)
    assert tokens == [9] * max_tokens
    assert [event.finish_reason for event in written] == [None] * (max_tokens - 1) + ["length"]
    assert len(model.fed) == max_tokens


@pytest.mark.parametrize("end", sorted(EOS))
def test_an_end_token_ends_the_answer_and_is_not_part_of_it(end):
    tokens, written = answer(run([9, 8, end, 9, 9])[1])
    assert tokens == [9, 8]
    assert (written[-1].token_ids, written[-1].finish_reason) == ((), "stop")
    assert [event.index for event in written] == [0, 1, 2]


def test_the_prompt_is_read_once_and_its_last_token_where_the_answer_begins():
    model, events = run([9, 1, 9])
    assert isinstance(next(events), PromptProcessed)
    list(events)
    assert (model.prefilled, model.fed) == ([[5, 6]], [7, 9, 1])


def test_a_prompt_of_one_token_is_enough():
    model, events = run([9, 1, 9], prompt=[5])
    assert answer(events)[0] == [9]
    assert model.prefilled == []


def test_an_answer_never_passes_the_end_of_the_context():
    tokens, written = answer(run([9] * 50, prompt=[5] * 10, context=14)[1])
    assert tokens == [9] * 4
    assert written[-1].finish_reason == "length"


def test_a_prompt_that_fills_the_context_is_refused():
    with pytest.raises(PromptError, match="14 tokens"):
        next(run([9], prompt=[5] * 14, context=14)[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("settings", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_logits_that_are_no_numbers_stop_with_the_token_named(bad, settings):
    logits = np.zeros((1, 1, V), np.float32)
    logits[0, 0, 4] = bad
    model, events = run([9, mx.array(logits), 9], settings=settings)
    with pytest.raises(GenerationError, match="token 2 "):
        list(events)
    assert model.cache.tokens == []


# The cache --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    values = tiny.config_values()
    return tiny.load(tmp_path_factory.mktemp("tiny"), values, tiny.random_tensors(values))


def test_logits_with_a_cache_are_those_of_a_full_pass_past_the_window(tiny_model):
    """30 tokens one by one through windows of 8, against a cold pass over all of them."""
    tokens = np.random.default_rng(0).integers(8, 90, 30).tolist()
    cache = tiny_model.make_cache()
    assert len(tokens) > 3 * tiny_model.config.sliding_window
    for length, token in enumerate(tokens, 1):
        logits = tiny_model.next_logits(mx.array([[token]], mx.int32), cache)
        whole = mx.array([tokens[:length]], mx.int32)
        cold = tiny_model.head(tiny_model.prefill(whole, tiny_model.make_cache())[:, -1:])
        error = mx.abs(logits - cold).max() / mx.abs(cold).max()
        assert error.item() < REREAD_LOGITS


@pytest.mark.parametrize("stop_after", [1, 2, 9, 20])
def test_a_cancelled_answer_leaves_the_cache_in_step(tiny_model, stop_after):
    prompt = list(range(10, 30))
    cache = PrefixCache(tiny_model, rewind_tokens=8)

    def write(max_tokens, cache):
        loop = token_loop(
            tiny_model.config,
            prompt,
            cache,
            draws=SeededDraws(1),
            settings=WARM,
            max_tokens=max_tokens,
            eos_token_ids=frozenset(),
        )
        return alone(loop, cache)

    events = write(30, cache)
    for _, _ in zip(range(stop_after), events, strict=False):
        pass
    events.close()
    assert cache.kv.offset == len(cache.tokens) == len(prompt) + stop_after - 1
    assert answer(write(9, cache))[0] == answer(write(9, PrefixCache(tiny_model)))[0]


def test_an_interrupt_between_reading_and_knowing_leaves_the_cache_in_step(tiny_model, monkeypatch):
    cache = PrefixCache(tiny_model, rewind_tokens=8)

    def interrupted(self, token):
        if len(self.tokens) == 22:
            raise KeyboardInterrupt
        return confirm(self, token)

    confirm = PrefixCache.confirm
    monkeypatch.setattr(PrefixCache, "confirm", interrupted)
    loop = token_loop(
        tiny_model.config,
        list(range(10, 30)),
        cache,
        draws=SeededDraws(1),
        settings=GREEDY,
        max_tokens=9,
        eos_token_ids=frozenset(),
    )
    with pytest.raises(KeyboardInterrupt):
        list(alone(loop, cache))
    assert cache.kv.offset == len(cache.tokens) == 22


# Choosing a token -------------------------------------------------------------------------------


def test_at_temperature_0_nothing_is_drawn():
    draws = CountingDraws()
    assert choose_token(row(0.2, 0.5, 0.3), draws, GREEDY).tolist() == [[1]]
    assert draws.counts["candidates"] == 0


def drawn(logits, **settings):
    """Which tokens 300 draws give."""
    draws, warm = SeededDraws(3), TokenSettings(**{"temperature": 1.0, **settings})
    return {choose_token(logits, draws, warm).item() for _ in range(300)}


def test_filters_keep_what_their_names_say():
    logits = row(0.4, 0.3, 0.2, 0.1)
    assert drawn(logits) == {0, 1, 2, 3}
    assert drawn(logits, top_k=2) == {0, 1}
    assert drawn(logits, top_k=4) == drawn(logits, top_k=99) == {0, 1, 2, 3}
    assert drawn(logits, top_p=0.65) == {0, 1}
    assert drawn(logits, min_p=0.6) == {0, 1}
    assert drawn(logits, min_p=1.0) == {0}
    assert drawn(logits, top_p=0.95, top_k=3, min_p=0.6) == {0, 1}


def test_the_temperature_comes_after_the_filters():
    assert drawn(row(0.6, 0.3, 0.1), top_p=0.5, temperature=50.0) == {0}
    counts = [0, 0]
    for seed in range(400):
        token = choose_token(row(0.8, 0.2), SeededDraws(seed), TokenSettings(temperature=2.0))
        counts[token.item()] += 1
    assert counts[1] / 400 == pytest.approx(
        1 / 3, abs=0.07
    )  # 0.2 ** 0.5 in 0.8 ** 0.5 + 0.2 ** 0.5
