"""The loop over canvases: exact lengths, end tokens, what is encoded when, and cancelling."""

import itertools
from types import SimpleNamespace

import mlx.core as mx
import pytest
from scripted import CountingDraws, ScriptedModel, certain_of, generate_blocks

from mlx_diffusiongemma import generation
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.errors import GenerationError, PromptError
from mlx_diffusiongemma.events import (
    BlockCommitted,
    BlockEncoded,
    DenoisingStep,
    PromptPartRead,
    PromptProcessed,
)
from mlx_diffusiongemma.generation import cut_block
from mlx_diffusiongemma.options import SamplerSettings

V, L, EOS = 40, 16, frozenset({1, 2})
FULL = list(range(10, 10 + L))


def config(context=1000):
    return SimpleNamespace(canvas_length=L, vocab_size=V, max_position_embeddings=context)


def run(
    blocks,
    *,
    max_tokens=1000,
    prompt=(5, 6, 7),
    context=1000,
    draws=None,
    retry_empty=False,
    **settings,
):
    model = ScriptedModel(config(context), blocks)
    events = generate_blocks(
        model,
        list(prompt),
        draws=draws or SeededDraws(0),
        settings=SamplerSettings(**settings),
        max_tokens=max_tokens,
        eos_token_ids=EOS,
        retry_empty=retry_empty,
    )
    return model, events


def answer(events):
    blocks = [event for event in events if isinstance(event, BlockCommitted)]
    return [token for block in blocks for token in block.token_ids], blocks


def test_events_come_in_order():
    _, events = run([FULL, [3, 1, *FULL[2:]]])
    kinds = [type(event) for event in events]
    assert kinds == [
        PromptProcessed,
        DenoisingStep,
        DenoisingStep,
        BlockCommitted,
        BlockEncoded,
        DenoisingStep,
        DenoisingStep,
        BlockCommitted,
    ]


@pytest.mark.parametrize("length", [1, 4, 5, 13])
def test_a_long_prompt_is_read_in_parts_with_events_between_them(monkeypatch, length):
    """So that another request may have its turn between them."""
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 4)
    prompt = [5 + n % 6 for n in range(length)]
    model, events = run([[1] * L], prompt=prompt)
    parts = -(-length // 4)
    before = list(itertools.takewhile(lambda event: isinstance(event, PromptPartRead), events))
    assert len(before) == parts - 1
    assert model.prefilled == [prompt[start : start + 4] for start in range(0, length, 4)]


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 33, 48])
def test_max_tokens_is_exact_below_and_across_canvas_borders(max_tokens):
    _, events = run([FULL] * 4, max_tokens=max_tokens)
    tokens, blocks = answer(events)
    assert len(tokens) == max_tokens
    assert [block.finish_reason for block in blocks] == [None] * (len(blocks) - 1) + ["length"]
    assert len(blocks) == -(-max_tokens // L)


@pytest.mark.parametrize("end", sorted(EOS))
def test_an_end_token_ends_the_answer_and_is_not_part_of_it(end):
    model, events = run([FULL, [3, 4, end, *FULL[3:]]])
    tokens, blocks = answer(events)
    assert tokens == [*FULL, 3, 4]
    assert blocks[-1].finish_reason == "stop"
    assert model.prefilled == [[5, 6, 7], FULL]


def test_an_empty_answer_is_an_answer():
    tokens, blocks = answer(run([[1] * L])[1])
    assert tokens == []
    assert blocks[-1].finish_reason == "empty"


class SecondTry:
    """Predicts an end token at position 0 of the first canvas, words of the next ones."""

    def __init__(self, tries=1):
        self.left = tries

    def __call__(self, canvas, previous):
        if previous is None:
            self.left -= 1
        return certain_of(FULL if self.left < 0 else [1, *FULL[1:]], V)


@pytest.mark.parametrize(
    ("retry", "empty", "reason", "passes"),
    [(True, 0, "length", 2), (True, 1, "length", 4), (True, 2, "empty", 4), (False, 1, "empty", 2)],
)
def test_an_empty_first_canvas_is_tried_once_more_from_new_noise(retry, empty, reason, passes):
    draws = CountingDraws()
    model, events = run([SecondTry(empty)], max_tokens=L, retry_empty=retry, draws=draws)
    _, *steps, block = events
    assert (block.finish_reason, block.denoising_steps) == (reason, passes)
    assert block.token_ids == (() if reason == "empty" else tuple(FULL))
    assert len(steps) == passes and {step.canvas_index for step in steps} == {0}
    canvases = [canvas.tolist() for canvas, previous in model.denoised if previous is None]
    assert draws.counts["initial_canvas"] == len(canvases) == passes / 2
    assert model.prefilled == [[5, 6, 7]]
    if len(canvases) == 2:
        assert canvases[0] != canvases[1]


def test_an_end_at_the_start_of_a_later_canvas_is_the_end():
    model, events = run([FULL, [1] * L], retry_empty=True)
    tokens, blocks = answer(events)
    assert tokens == FULL and blocks[-1].finish_reason == "stop"
    assert len(model.denoised) == 4


def test_the_end_token_just_behind_the_budget_counts_as_an_end():
    block = [3, 4, 5, 1, *FULL[4:]]
    assert cut_block(block, EOS, 3) == ([3, 4, 5], "stop")
    assert cut_block(block, EOS, 2) == ([3, 4], "length")


def test_a_budget_that_ends_with_the_canvas_is_length():
    assert cut_block(FULL, EOS, L) == (FULL, "length")
    assert cut_block(FULL, EOS, L + 1) == (FULL, None)


def test_a_block_is_encoded_only_when_another_canvas_follows():
    model, events = run([FULL, [1] * L])
    for event in events:
        if isinstance(event, BlockCommitted) and event.canvas_index == 0:
            assert model.prefilled == [[5, 6, 7]]
    assert model.prefilled == [[5, 6, 7], FULL]


def test_self_conditioning_starts_anew_with_each_canvas():
    model, events = run([FULL, [1] * L])
    list(events)
    assert [previous is None for _, previous in model.denoised] == [True, False, True, False]


def test_committed_is_the_argmax_not_the_sampled_canvas():
    def unsure(canvas, previous):
        return certain_of(FULL, V, height=3.0)  # sampling differs from the argmax

    tokens, blocks = answer(run([unsure], max_tokens=L, max_denoising_steps=2)[1])
    assert tokens == FULL
    assert not blocks[0].converged


def test_the_counts_of_a_block():
    _, blocks = answer(run([FULL, [1] * L], stability_threshold=2)[1])
    assert [(block.canvas_index, block.denoising_steps) for block in blocks] == [(0, 3), (1, 3)]
    assert all(block.converged for block in blocks)


def test_draws_do_not_depend_on_who_watches():
    watched, ignored = CountingDraws(4), CountingDraws(4)
    for event in run([FULL, [1] * L], draws=watched)[1]:
        if isinstance(event, DenoisingStep):
            mx.eval(event.entropy, event.accepted)
    list(run([FULL, [1] * L], draws=ignored)[1])
    assert watched.counts == ignored.counts


@pytest.mark.parametrize("spare", [0, 5, L - 1])
def test_an_answer_goes_to_the_end_of_the_context_and_never_past_it(spare):
    context = 10 + 3 * L + spare
    tokens, blocks = answer(run([FULL] * 9, prompt=[5] * 10, context=context)[1])
    assert len(tokens) == 3 * L
    assert blocks[-1].finish_reason == "length"


def test_a_prompt_that_leaves_no_room_for_a_canvas_is_refused_before_any_work():
    model, events = run([FULL], prompt=[5] * 85, context=100)
    with pytest.raises(PromptError, match="85 tokens") as raised:
        next(events)
    assert "at most 84" in raised.value.hint
    assert model.prefilled == []
    assert next(run([FULL], prompt=[5] * 84, context=100)[1]).prompt_tokens == 84


def test_a_context_without_room_for_any_prompt_says_so():
    with pytest.raises(PromptError, match="no room for a prompt and its answer"):
        next(run([FULL], prompt=[5], context=L)[1])


@pytest.mark.parametrize(
    ("prompt", "named"), [([], "no tokens"), ([5, V], f"token {V}"), ([-1], "token -1")]
)
def test_prompts_that_the_model_cannot_read(prompt, named):
    with pytest.raises(PromptError, match=named):
        next(run([FULL], prompt=prompt)[1])


def test_nan_in_a_later_canvas_names_it():
    def broken(canvas, previous):
        return certain_of(FULL, V) * float("nan")

    _, events = run([FULL, broken])
    with pytest.raises(GenerationError, match="canvas 2, denoising step 1"):
        list(events)


def test_all_positions_accepted_and_stable_stops_at_that_step():
    _, blocks = answer(run([[1] * L], max_denoising_steps=48)[1])
    assert blocks[0].denoising_steps == 2


def test_closing_the_iterator_stops_the_work():
    model, events = run([FULL] * 3)
    next(events)
    next(events)
    events.close()
    assert len(model.denoised) == 1
    assert list(events) == []
