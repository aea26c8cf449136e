"""Write an answer block by block: the only loop over canvases. Token ids in, token ids out.

    prompt --> prefill --> [ denoise a canvas --> commit --> prefill the block ] * --> end

A block is encoded into the KV cache only when another canvas follows. Nothing outlives the
iterator but the cache that the caller gave, and that holds no more than it says: closing the
iterator at any point leaves no trace for the next generation. The passes themselves are asked for:
see `passes`.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.constraints.progress import ConstrainedText
from mlx_diffusiongemma.denoising import Digester, denoising_loop
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import ConfigError, PromptError
from mlx_diffusiongemma.events import (
    BlockCommitted,
    BlockEncoded,
    DenoisingStep,
    FinishReason,
    PromptPartRead,
    PromptProcessed,
    TokenEvent,
)
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.passes import Answer, Pass, Read, carried_out
from mlx_diffusiongemma.prefix_cache import PrefixCache


def alone(
    loop: Generator[Pass | TokenEvent, Answer, None], cache: PrefixCache
) -> Generator[TokenEvent, None, None]:
    """The events of one answer's loop, every pass over its `cache` done as it comes."""
    return carried_out(loop, cache.predict, cache.read)


def block_loop(
    config: ModelConfig,
    prompt: Sequence[int],
    cache: PrefixCache,
    *,
    draws: Draws,
    settings: SamplerSettings,
    max_tokens: int,
    eos_token_ids: frozenset[int],
    marks: Iterable[int] = (),
    max_context: int | None = None,
    retry_empty: bool = False,
    canvas_length: int | None = None,
    shrink_canvas: bool = False,
    follow: Callable[[int], ConstrainedText] | None = None,
    digest: Digester | None = None,
) -> Generator[Pass | TokenEvent, Answer, None]:
    """Yield the events of one answer; the last `BlockCommitted` says why it ends.

    Canvases have the checkpoint's length, or `canvas_length`; the last block is cut to `max_tokens`
    exactly. `shrink_canvas` and `digest` are for `denoising_loop`. PromptError when the prompt and
    one canvas do not fit the context, which is the model's or `max_context` if that is less; an
    answer that reaches its end ends with "length", one that ends before its first token with
    "empty": `retry_empty` gives the canvas of that one more try, with the draws that follow.

    What `cache` shares with the prompt is not read again; `marks` are positions of the prompt
    that later ones may return to. `follow(tokens)` begins a constraint that ends within so many.
    """
    length, vocab_size = _length_of(config, canvas_length), config.vocab_size
    context = context_of(config, max_context)
    check_prompt(prompt, context, length, vocab_size)
    text = follow(min(max_tokens, (context - len(prompt)) // length * length)) if follow else None
    yield (yield from read_prompt(cache, prompt, marks))

    budget, index = max_tokens, 0
    while True:
        write = partial(
            denoising_loop,
            draws,
            settings,
            canvas_length=length,
            vocab_size=vocab_size,
            canvas_index=index,
            shrink_at=eos_token_ids if shrink_canvas else frozenset(),
            rules=None if text is None else text.rules(length),
            digest=digest,
        )
        tries = 2 if retry_empty and index == 0 and text is None else 1
        step, passes, block = yield from _write_canvas(write, tries, eos_token_ids)
        kept, reason = cut_block(block, eos_token_ids, budget)
        reason = "stop" if text is not None and text.commit(kept) else reason
        reason = "empty" if reason == "stop" and index == 0 and not kept else reason
        if reason is None and len(cache.tokens) + 2 * length > context:
            reason = "length"
        yield BlockCommitted(index, tuple(kept), passes, step.converged, reason)
        if reason is not None:
            return
        yield Read(block)
        yield BlockEncoded(index)
        budget, index = budget - len(kept), index + 1


def read_prompt(
    cache: PrefixCache, prompt: Sequence[int], marks: Iterable[int]
) -> Generator[Pass | PromptPartRead, Answer, PromptProcessed]:
    """Read what the cache does not share with the prompt, in parts with an event between them."""
    shared = cache.go_to(prompt, marks)
    cached = len(cache.tokens)
    cache.expect(len(prompt))
    for start in range(cached, len(prompt), PREFILL_CHUNK):
        if start > cached:
            yield PromptPartRead()
        yield Read(list(prompt[start : start + PREFILL_CHUNK]))
    return PromptProcessed(len(prompt), cached_tokens=cached, reread_tokens=shared - cached)


def _write_canvas(
    write: Callable[[], Generator[Pass | DenoisingStep, Answer, DenoisingStep]],
    tries: int,
    eos_token_ids: frozenset[int],
) -> Generator[Pass | DenoisingStep, Answer, tuple[DenoisingStep, int, list[int]]]:
    """Pass the steps of a canvas on, until it says something or the tries run out.

    An end token that has taken a canvas over keeps it: only new noise leads away.

    Returns the last step, how many there were, and the tokens of the canvas.
    """
    passes = 0
    while True:
        step = yield from write()
        passes, tries = passes + step.step + 1, tries - 1
        block: list[int] = step.argmax_canvas[0].tolist()  # type: ignore[assignment]
        if not tries or block[0] not in eos_token_ids:
            return step, passes, block


def cut_block(
    block: Sequence[int], eos_token_ids: frozenset[int], budget: int
) -> tuple[Sequence[int], FinishReason | None]:
    """What of a block belongs to the answer, and why the answer ends with it, if it does.

    The end token is not part of the answer: an answer of exactly `budget` tokens before an end
    token that is in sight has ended by itself.
    """
    end = next((i for i, token in enumerate(block) if token in eos_token_ids), None)
    if end is not None and end <= budget:
        return block[:end], "stop"
    if budget <= len(block):
        return block[:budget], "length"
    return block, None


def _length_of(config: ModelConfig, canvas_length: int | None) -> int:
    most = config.canvas_length
    if canvas_length is not None and canvas_length > most:
        raise ConfigError(
            f"canvas_length is {canvas_length}",
            hint=f"canvas_length must be at most {most}, what the checkpoint was trained for",
        )
    return canvas_length or most


def context_of(config: ModelConfig, max_context: int | None) -> int:
    """The most tokens of prompt and answer: the model's limit, or `max_context` if that is less."""
    own = config.max_position_embeddings
    return own if max_context is None else min(own, max_context)


def check_prompt(prompt: Sequence[int], context: int, needed: int, vocab_size: int) -> None:
    """Raise PromptError unless the prompt can be read and leaves `needed` tokens of the context."""
    room = context - needed
    if not prompt:
        raise PromptError("the prompt holds no tokens", hint="write something to answer")
    if room < 1:
        raise PromptError(
            "the context has no room for a prompt and its answer",
            hint="`max_position_embeddings` in config.json and `max_context` must be above "
            f"{needed}",
        )
    if len(prompt) > room:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens",
            hint=f"at most {room} can be read; the rest of the context is needed to answer",
        )
    outside = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise PromptError(
            f"the prompt holds token {outside}",
            hint=f"this model knows the tokens 0 to {vocab_size - 1}: is the tokenizer its own?",
        )
