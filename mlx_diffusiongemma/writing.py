"""One answer on its way: what its loop reports becomes text, counts and times.

token ids --> text that is certain --> event --> whoever asked
        +---> counts, times --> GenerationResult
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx

from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.constraints.stopwatch import ConstraintCost
from mlx_diffusiongemma.events import (
    BlockCommitted,
    BlockEncoded,
    Event,
    GenerationResult,
    GenerationStats,
    Limit,
    PromptPartRead,
    PromptProcessed,
    TokenEvent,
    TokenWritten,
)
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.passes import Answer, Pass
from mlx_diffusiongemma.prefix_cache import PrefixCache

_Written = BlockCommitted | TokenWritten


@dataclass(frozen=True)
class Plan:
    """How an answer is written, once everything that had to be measured is known."""

    mode: Literal["diffusion", "ar"]
    settings: SamplerSettings


class Writing:
    """An answer in progress.

    Attributes:
        loop: its passes and events, in token ids; whoever drives it gives the events to `take`.
        cache: what its passes read and write.
        is_over: the answer is complete; nothing more is to be asked of the loop.
    """

    def __init__(
        self,
        *,
        loop: Generator[Pass | TokenEvent, Answer, None],
        cache: PrefixCache,
        answer: AnswerStream,
        plan: Plan,
        seed: int,
        max_tokens: int,
        load_seconds: float,
        constraint_cost: ConstraintCost | None = None,
    ):
        self.loop = loop
        self.cache = cache
        self.is_over = False
        self._answer = answer
        self._plan = plan
        self._seed = seed
        self._max_tokens = max_tokens
        self._load_seconds = load_seconds
        self._constraint_cost = constraint_cost
        self._prompt: PromptProcessed | None = None
        self._written: list[_Written] = []
        self._prefill_seconds = 0.0
        self._denoising_seconds = 0.0
        self._commit_seconds = 0.0
        self._waiting_seconds = 0.0

    @property
    def asks_for_passes(self) -> bool:
        """Whether its loop leaves the passes to its driver; in mode "ar" it does them itself."""
        return self._plan.mode == "diffusion"

    def waited(self, seconds: float) -> None:
        """Count time in which other requests had their turns."""
        self._waiting_seconds += seconds

    def take(self, event: TokenEvent, seconds: float) -> Event | None:
        """Note what took `seconds`; the event as it is shown, or None when it is not."""
        if isinstance(event, PromptPartRead):
            self._prefill_seconds += seconds
            return None
        if isinstance(event, PromptProcessed):
            self._prompt = event
            self._prefill_seconds += seconds
        elif isinstance(event, BlockEncoded):
            self._commit_seconds += seconds
            return None
        else:
            self._denoising_seconds += seconds
        if isinstance(event, _Written):
            event = _with_text(event, self._answer)
            self._written.append(event)
            self.is_over = event.finish_reason is not None
        return event

    def result(self) -> GenerationResult:
        """The complete answer."""
        last = self._written[-1]
        assert last.finish_reason is not None and self._prompt is not None
        token_ids = tuple(token for event in self._written for token in event.token_ids)
        limit: Limit = "max_tokens" if len(token_ids) >= self._max_tokens else "context"
        blocks = [event for event in self._written if isinstance(event, BlockCommitted)]
        plan, cost = self._plan, self._constraint_cost
        return GenerationResult(
            text=self._answer.text,
            thought=self._answer.thought,
            tool_calls=self._answer.tool_calls,
            token_ids=token_ids,
            finish_reason=last.finish_reason,
            stats=GenerationStats(
                prompt_tokens=self._prompt.prompt_tokens,
                cached_tokens=self._prompt.cached_tokens,
                reread_tokens=self._prompt.reread_tokens,
                generated_tokens=len(token_ids),
                mode=plan.mode,
                max_denoising_steps=(
                    plan.settings.max_denoising_steps if plan.mode == "diffusion" else None
                ),
                denoising_steps=tuple(block.denoising_steps for block in blocks),
                converged=tuple(block.converged for block in blocks),
                seed=self._seed,
                load_seconds=self._load_seconds,
                prefill_seconds=self._prefill_seconds,
                denoising_seconds=self._denoising_seconds,
                commit_seconds=self._commit_seconds,
                waiting_seconds=self._waiting_seconds,
                constraint_seconds=None if cost is None else cost.working.seconds,
                constraint_preparation_seconds=None if cost is None else cost.preparing.seconds,
                peak_memory_bytes=mx.get_peak_memory(),
                truncated_by=limit if last.finish_reason == "length" else None,
            ),
        )


def _with_text(event: _Written, answer: AnswerStream) -> _Written:
    """The event with the text it makes certain; cut short where a stop string ends the answer."""
    before = answer.token_count
    delta = answer.add(event.token_ids)
    text, thought, reason = delta.text, delta.thought, event.finish_reason
    if delta.stopped:
        reason = "stop"
    if reason is not None:
        rest = answer.finish()
        text, thought = text + rest.text, thought + rest.thought
        if rest.stopped:
            reason = "stop"
    kept = event.token_ids[: answer.token_count - before]
    return replace(event, token_ids=kept, finish_reason=reason, text=text, thought=thought)
