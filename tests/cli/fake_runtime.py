"""A runtime that plays scripted events: no weights, no tokenizer, milliseconds."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.events import (
    BlockCommitted,
    DenoisingStep,
    Event,
    Finished,
    GenerationResult,
    GenerationStats,
    PromptProcessed,
)
from mlx_diffusiongemma.options import GenerationOptions

WORDS = ("", "Hello", ",", " world", "!\n", " 漢字", "\n", "\x1b[31m", " frog")
END = 0


class FakeTokenizer:
    eos_token_ids = frozenset({END})

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[token] for token in ids)


def step(
    argmax: Sequence[int],
    accepted: Sequence[int],
    *,
    canvas: int = 0,
    step: int = 0,
    entropy: float = 0.5,
    converged: bool = False,
) -> DenoisingStep:
    return DenoisingStep(
        canvas_index=canvas,
        step=step,
        max_denoising_steps=4,
        argmax_canvas=mx.array([argmax], mx.int32),
        accepted=mx.array([accepted]).astype(mx.bool_),
        entropy=mx.full((1, len(argmax)), entropy, mx.float32),
        converged=converged,
    )


def block(text: str, *, thought: str = "", canvas: int = 0, reason: Any = None) -> BlockCommitted:
    return BlockCommitted(
        canvas_index=canvas,
        token_ids=(1, 2, 3),
        denoising_steps=2,
        converged=True,
        finish_reason=reason,
        text=text,
        thought=thought,
    )


def finished(
    text: str,
    *,
    thought: str = "",
    reason: Any = "stop",
    tokens: int = 3,
    cut_by: Any = "max_tokens",
) -> Finished:
    stats = GenerationStats(
        prompt_tokens=7,
        generated_tokens=tokens,
        denoising_steps=(2, 3),
        converged=(True, False),
        seed=11,
        load_seconds=0.25,
        prefill_seconds=0.5,
        denoising_seconds=0.1,
        commit_seconds=0.025,
        truncated_by=None if reason == "stop" else cut_by,
        peak_memory_bytes=12_345_678,
    )
    return Finished(
        GenerationResult(
            text=text,
            thought=thought,
            tool_calls=(),
            token_ids=(1, 2, 3),
            finish_reason=reason,
            stats=stats,
        )
    )


def answer(
    *texts: str,
    thought: str = "",
    reason: Any = "stop",
    tokens: int = 3,
    cut_by: Any = "max_tokens",
) -> list[Event]:
    """Events of an answer with one canvas of two steps for each text; the thought comes first."""
    events: list[Event] = [PromptProcessed(prompt_tokens=7)]
    for index, text in enumerate(texts):
        last = index == len(texts) - 1
        events += [
            step([1, 2, 3], [1, 0, 0], canvas=index, step=0),
            step([1, 2, 3], [1, 1, 1], canvas=index, step=1, converged=True),
            block(
                text,
                thought="" if index else thought,
                canvas=index,
                reason=reason if last else None,
            ),
        ]
    last = finished("".join(texts), thought=thought, reason=reason, tokens=tokens, cut_by=cut_by)
    return [*events, last]


class FakeRuntime:
    """Plays one script for each call of `stream`; an exception in a script is raised there."""

    def __init__(self, *scripts: Sequence[Event | BaseException]):
        self.tokenizer = FakeTokenizer()
        self.calls: list[tuple[Any, GenerationOptions]] = []
        self._scripts = iter(scripts)

    def session(self) -> "FakeRuntime":
        return self

    def stream(self, prompt: Any, options: GenerationOptions) -> Iterator[Event]:
        self.calls.append((prompt, options))
        for event in next(self._scripts):
            if isinstance(event, BaseException):
                raise event
            yield event
