"""One answer: token events meet the tokenizer and the clock.

token ids --> generate_blocks --> events --> text that is certain, times --> Finished(result)
"""

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import mlx.core as mx

from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.autoregressive import generate_tokens
from mlx_diffusiongemma.config import GenerationConfig
from mlx_diffusiongemma.draws import Draws, SeededDraws
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.events import (
    BlockCommitted,
    BlockEncoded,
    Event,
    Finished,
    GenerationResult,
    GenerationStats,
    Limit,
    PromptProcessed,
    TokenEvent,
    TokenWritten,
)
from mlx_diffusiongemma.generation import generate_blocks
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings, TokenSettings
from mlx_diffusiongemma.pace import Pace, left_to_right_is_faster, steps_within
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.presets import settings_for
from mlx_diffusiongemma.prompt_cache import Identity, model_fingerprint
from mlx_diffusiongemma.text import Message, Tokenizer
from mlx_diffusiongemma.turns import turn

Prompt = str | Sequence[Message]
_Written = BlockCommitted | TokenWritten


@dataclass(frozen=True, eq=False)
class Responder:
    """A loaded model as far as one answer needs it; `Runtime` and `Session` share it."""

    model: DiffusionGemma
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    load_seconds: float
    pace: Pace = field(default_factory=Pace)

    @cached_property
    def identity(self) -> Identity:
        """What a prompt cache must have been made with."""
        return Identity(model_fingerprint(self.model), self.tokenizer.fingerprint)

    def encode(self, prompt: Prompt, options: GenerationOptions) -> list[int]:
        """The token ids of a prompt; PromptError or ConfigError before anything is computed."""
        if not isinstance(options, GenerationOptions):
            raise ConfigError(
                f"options are {options!r}", hint="give a GenerationOptions, or leave them out"
            )
        return self.tokenizer.encode_prompt(
            prompt, chat_template=options.chat_template, thinking=options.thinking
        )

    def answer(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        draws: Draws | None,
        *,
        cache: PrefixCache | None = None,
        marks: Iterable[int] = (),
        max_context: int | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of one answer, `Finished` last; see `generate_blocks`."""
        seed = secrets.randbits(32) if options.seed is None else options.seed
        answer = AnswerStream(self.tokenizer, options.stop, prompt_ids=prompt_ids)
        record = _Record()
        with turn():
            mx.reset_peak_memory()
            draws = draws or SeededDraws(seed)
            plan = self._plan(options, len(prompt_ids))
        tokens = self._tokens(prompt_ids, options, plan, draws, cache, marks, max_context)
        try:
            for event in record.timed(tokens):
                if isinstance(event, _Written):
                    event = _with_text(event, answer)
                    record.written.append(event)
                if not isinstance(event, BlockEncoded):
                    yield event
                if isinstance(event, _Written) and event.finish_reason is not None:
                    break
        finally:
            tokens.close()
        result = self._result(answer, record, seed, options, plan)
        if not options.shrink_canvas:  # whose steps differ in length
            length = options.canvas_length or self.model.config.canvas_length
            self.pace.learn(result.stats, length)
        yield Finished(result)

    def _plan(self, options: GenerationOptions, prompt_tokens: int) -> "_Plan":
        """What "auto" and a deadline come to for this prompt; measures what is not known yet."""
        settings = settings_for(self.generation_config.sampler, options)
        faster = partial(
            left_to_right_is_faster, self.pace, self.model, options, settings, prompt_tokens
        )
        if options.mode == "ar" or options.mode == "auto" and faster():
            return _Plan("ar", settings)
        if options.deadline_ms is not None:
            length = options.canvas_length or self.model.config.canvas_length
            step = self.pace.step_seconds(self.model, length, prompt_tokens)
            most = settings.max_denoising_steps
            steps = steps_within(options.deadline_ms / 1000, step, most)
            settings = replace(settings, max_denoising_steps=steps)
        return _Plan("diffusion", settings)

    def _tokens(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        plan: "_Plan",
        draws: Draws,
        cache: PrefixCache | None,
        marks: Iterable[int],
        max_context: int | None,
    ) -> Generator[TokenEvent, None, None]:
        """The events of one answer in token ids."""
        ends = self.generation_config.eos_token_ids | self.tokenizer.eos_token_ids
        if plan.mode == "ar":
            return generate_tokens(
                self.model,
                prompt_ids,
                draws=draws,
                settings=TokenSettings.from_options(options),
                max_tokens=options.max_tokens,
                eos_token_ids=ends,
                cache=cache,
                marks=marks,
                max_context=max_context,
            )
        return generate_blocks(
            self.model,
            prompt_ids,
            draws=draws,
            settings=plan.settings,
            max_tokens=options.max_tokens,
            eos_token_ids=ends,
            cache=cache,
            marks=marks,
            max_context=max_context,
            retry_empty=options.retry_empty,
            canvas_length=options.canvas_length,
            shrink_canvas=options.shrink_canvas,
        )

    def _result(
        self,
        answer: AnswerStream,
        record: "_Record",
        seed: int,
        options: GenerationOptions,
        plan: "_Plan",
    ) -> GenerationResult:
        last = record.written[-1]
        assert last.finish_reason is not None and record.prompt is not None
        token_ids = tuple(token for event in record.written for token in event.token_ids)
        limit: Limit = "max_tokens" if len(token_ids) >= options.max_tokens else "context"
        blocks = [event for event in record.written if isinstance(event, BlockCommitted)]
        return GenerationResult(
            text=answer.text,
            thought=answer.thought,
            tool_calls=answer.tool_calls,
            token_ids=token_ids,
            finish_reason=last.finish_reason,
            stats=GenerationStats(
                prompt_tokens=record.prompt.prompt_tokens,
                cached_tokens=record.prompt.cached_tokens,
                reread_tokens=record.prompt.reread_tokens,
                generated_tokens=len(token_ids),
                mode=plan.mode,
                max_denoising_steps=(
                    plan.settings.max_denoising_steps if plan.mode == "diffusion" else None
                ),
                denoising_steps=tuple(block.denoising_steps for block in blocks),
                converged=tuple(block.converged for block in blocks),
                seed=seed,
                load_seconds=self.load_seconds,
                prefill_seconds=record.prefill_seconds,
                denoising_seconds=record.denoising_seconds,
                commit_seconds=record.commit_seconds,
                waiting_seconds=record.waiting_seconds,
                peak_memory_bytes=mx.get_peak_memory(),
                truncated_by=limit if last.finish_reason == "length" else None,
            ),
        )


@dataclass(frozen=True)
class _Plan:
    """How an answer is written, once everything that had to be measured is known."""

    mode: Literal["diffusion", "ar"]
    settings: SamplerSettings


def result_of(events: Iterator[Event]) -> GenerationResult:
    """What a stream ends with."""
    for event in events:
        if isinstance(event, Finished):
            return event.result
    raise AssertionError("a stream ends with Finished")


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


class _Record:
    """What one answer did, and the time spent on it; a consumer's own time is not."""

    def __init__(self) -> None:
        self.prompt: PromptProcessed | None = None
        self.written: list[_Written] = []
        self.prefill_seconds = 0.0
        self.denoising_seconds = 0.0
        self.commit_seconds = 0.0
        self.waiting_seconds = 0.0

    def timed(self, events: Iterator[TokenEvent]) -> Iterator[TokenEvent]:
        while True:
            asked = time.perf_counter()
            with turn():
                started = time.perf_counter()
                event = next(events, None)
                spent = time.perf_counter() - started
            self.waiting_seconds += started - asked
            if event is None:
                return
            if isinstance(event, PromptProcessed):
                self.prompt = event
                self.prefill_seconds += spent
            elif isinstance(event, BlockEncoded):
                self.commit_seconds += spent
            else:
                self.denoising_seconds += spent
            yield event
