"""Write an answer from left to right with the same weights: the only loop over single tokens.

    prompt --> prefill --> [ next-token logits --> token --> read it ] * --> end

The prefill pass is a causal language model. While the caller looks at a token, the pass that reads
it is already queued. Nothing outlives the iterator but the cache that the caller gave.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import FinishReason, TokenEvent, TokenWritten
from mlx_diffusiongemma.generation import check_prompt, context_of, read_prompt
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.options import TokenSettings
from mlx_diffusiongemma.passes import Answer, Pass
from mlx_diffusiongemma.prefix_cache import PrefixCache

_NOT_FINITE = -1  # in place of a token


def token_loop(
    config: ModelConfig,
    prompt: Sequence[int],
    cache: PrefixCache,
    *,
    draws: Draws,
    settings: TokenSettings,
    max_tokens: int,
    eos_token_ids: frozenset[int],
    marks: Iterable[int] = (),
    max_context: int | None = None,
) -> Generator[Pass | TokenEvent, Answer, None]:
    """Yield the events of one answer; the last `TokenWritten` says why it ends.

    PromptError when the prompt and one token do not fit the context; an answer that reaches the end
    of the context ends with "length". GenerationError when the logits are not numbers.

    `cache`, `marks` and `max_context` are those of `block_loop`. The prompt's last token is
    always read: its logits are where the answer begins.
    """
    context = context_of(config, max_context)
    check_prompt(prompt, context, 1, config.vocab_size)
    before, last = prompt[:-1], prompt[-1]
    processed = yield from read_prompt(cache, before, marks)
    try:
        logits = cache.read_ahead(mx.array([[last]], mx.int32))
        cache.confirm(mx.array(last))
        yield replace(processed, prompt_tokens=len(prompt))
        most = min(max_tokens, context - len(prompt))
        for index in range(most):
            token = choose_token(logits, draws, settings)
            is_last = index + 1 == most
            if not is_last:
                logits = cache.read_ahead(token)
            value: int = token.item() if is_last else cache.confirm(token)  # type: ignore[assignment]
            if value == _NOT_FINITE:
                cache.clear()
                raise GenerationError(
                    f"the logits of token {index + 1} are not finite numbers",
                    hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
                )
            ended = value in eos_token_ids
            reason: FinishReason | None = "length" if is_last else None
            if ended:
                reason = "stop" if index else "empty"
            yield TokenWritten(index, () if ended else (value,), reason)
            if reason is not None:
                return
    finally:
        cache.settle()


def choose_token(logits: mx.array, draws: Draws, settings: TokenSettings) -> mx.array:
    """int32 [1, 1] from float32 [1, 1, V]: the argmax at temperature 0, else a draw.

    The order is mlx-lm's: top-p, min-p and top-k look at the probabilities at temperature 1, and
    what they leave is drawn at `settings.temperature`. -1 where the logits are not finite numbers.
    """
    if settings.temperature == 0:
        token = mx.argmax(logits, axis=-1).astype(mx.int32)
    else:
        log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if settings.top_p < 1:
            log_probs = apply_top_p(log_probs, settings.top_p)
        if settings.min_p > 0:
            log_probs = apply_min_p(log_probs, settings.min_p)
        if 0 < settings.top_k < logits.shape[-1]:
            log_probs = apply_top_k(log_probs, settings.top_k)
        scaled = Logits(log_probs, temperature=settings.temperature)
        token = draws.candidates(scaled, sampling.logit_statistics(scaled))
    return mx.where(mx.all(mx.isfinite(logits), axis=-1), token, _NOT_FINITE)
