"""What a generation reports while it runs, and what it returns.

    PromptProcessed --> DenoisingStep * --> BlockCommitted --> DenoisingStep * --> ... --> Finished
    PromptProcessed --> TokenWritten * --> Finished              (from left to right)

The loops only yield these records; whoever consumes them prints, draws, decodes and keeps time.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import mlx.core as mx

FinishReason = Literal["stop", "length", "empty"]
Limit = Literal["max_tokens", "context"]


@dataclass(frozen=True, eq=False)
class PromptProcessed:
    """The prompt is in the KV cache.

    Attributes:
        prompt_tokens: length of the prompt.
        cached_tokens: how many of them, from the start, were in the cache and stayed there; the
            rest was read.
        reread_tokens: how many of those that were read had been in the cache too, where sliding
            layers had lost what comes before them.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    reread_tokens: int = 0


@dataclass(frozen=True, eq=False)
class PromptPartRead:
    """A part of a long prompt has been read; others may have their turns before the next.

    Of the token loops alone, for turns and the clock: who asks for text does not see it.
    """


@dataclass(frozen=True, eq=False)
class DenoisingStep:
    """One decoder pass over the canvas. Reading the arrays costs a copy; ignoring them is free.

    Attributes:
        canvas_index: which canvas of the answer, from 0.
        step: which pass over this canvas, from 0.
        max_denoising_steps: the most passes this canvas may take.
        argmax_canvas: int32 [B, L], the text if denoising stopped here.
        accepted: bool [B, L], positions whose candidate was kept; the others are renoised.
        entropy: float32 [B, L], nats.
        converged: the canvas is stable and confident; this is its last step.
    """

    canvas_index: int
    step: int
    max_denoising_steps: int
    argmax_canvas: mx.array
    accepted: mx.array
    entropy: mx.array
    converged: bool


@dataclass(frozen=True, eq=False)
class BlockCommitted:
    """A finished canvas has joined the answer.

    Attributes:
        canvas_index: which canvas of the answer, from 0.
        token_ids: the tokens it adds, without the end token and what follows it.
        denoising_steps: decoder passes it took; those of a first canvas that came out empty and
            was tried again count too.
        converged: False when it ran out of steps.
        finish_reason: why the answer ends here; None when another canvas follows.
        text: answer text that is certain now and was not before; filled in by `Runtime`.
        thought: the same for the thought channel.
    """

    canvas_index: int
    token_ids: tuple[int, ...]
    denoising_steps: int
    converged: bool
    finish_reason: FinishReason | None
    text: str = ""
    thought: str = ""


@dataclass(frozen=True, eq=False)
class BlockEncoded:
    """A committed canvas has been read into the KV cache; the next canvas follows it.

    Of the token loop alone, for the clock: who asks for text does not see it.

    Attributes:
        canvas_index: which canvas of the answer, from 0.
    """

    canvas_index: int


@dataclass(frozen=True, eq=False)
class TokenWritten:
    """One more token of an answer that is written from left to right.

    Attributes:
        index: which token of the answer, from 0.
        token_ids: the token; empty when it is the end token.
        finish_reason: why the answer ends here; None when another token follows.
        text, thought: see `BlockCommitted`.
    """

    index: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    text: str = ""
    thought: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerationStats:
    """What a generation cost. In a batch each answer has an equal share of a pass's time.

    Attributes:
        prompt_tokens, generated_tokens: counts; the end token is not counted.
        cached_tokens, reread_tokens: see `PromptProcessed`; 0 without a session.
        mode: how the answer was written: "diffusion", or "ar" from left to right.
        max_denoising_steps: the most passes a canvas was allowed; None in mode "ar". With the seed
            it repeats an answer that had a deadline.
        denoising_steps: decoder passes, one number per canvas; empty in mode "ar".
        converged: one flag per canvas; False where the steps ran out first.
        seed: what repeats this generation.
        load_seconds: time the model took to load, once.
        prefill_seconds, denoising_seconds, commit_seconds: time of reading the prompt, of the
            canvases (or of all tokens in mode "ar"), and of reading committed canvases into the
            cache.
        waiting_seconds: time in which other requests had their turns; in none of the above.
        constraint_seconds, constraint_preparation_seconds: what of these times a constraint took:
            at the canvases (masks, noise, the most likely text), and before them, once for each
            constraint in a process; None without a constraint.
        truncated_by: what cut the answer, None when it came to its own end.
        peak_memory_bytes: MLX's high-water mark during this generation, weights included; with
            that of requests that ran at the same time, since the last of them began.
    """

    prompt_tokens: int
    generated_tokens: int
    denoising_steps: tuple[int, ...]
    converged: tuple[bool, ...]
    seed: int
    load_seconds: float
    prefill_seconds: float
    denoising_seconds: float
    commit_seconds: float
    peak_memory_bytes: int
    waiting_seconds: float = 0.0
    constraint_seconds: float | None = None
    constraint_preparation_seconds: float | None = None
    truncated_by: Limit | None = None
    cached_tokens: int = 0
    reread_tokens: int = 0
    mode: Literal["diffusion", "ar"] = "diffusion"
    max_denoising_steps: int | None = None

    @property
    def canvases(self) -> int:
        """How many canvases were denoised."""
        return len(self.denoising_steps)

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per decoder pass, or per pass of any kind in mode "ar"."""
        if self.mode == "ar":
            return 1.0
        return self.generated_tokens / max(sum(self.denoising_steps), 1)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, from the moment the prompt was read."""
        seconds = self.denoising_seconds + self.commit_seconds
        return self.generated_tokens / seconds if seconds else 0.0

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of the generation's time: "prefill", "denoising" and "commit"."""
        seconds = {
            "prefill": self.prefill_seconds,
            "denoising": self.denoising_seconds,
            "commit": self.commit_seconds,
        }
        total = sum(seconds.values())
        return {part: spent / total if total else 0.0 for part, spent in seconds.items()}

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, the derived ones too; ready for JSON."""
        return asdict(self) | {
            "canvases": self.canvases,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
            "time_shares": self.time_shares,
        }


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """A finished answer.

    Attributes:
        text: what the reader sees: no special tokens, no thought, no tool calls.
        thought: text of the thought channel, empty when the model did not think.
        tool_calls: tool-call blocks as the model wrote them, without their outer markers.
        token_ids: every generated token, in order, without the end token.
        finish_reason: "stop" (end token or stop string), "length" (the budget or the context cut
            it) or "empty" (the model ended it before the first token).
        stats: what it cost.
    """

    text: str
    thought: str
    tool_calls: tuple[str, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {
            "text": self.text,
            "thought": self.thought,
            "tool_calls": list(self.tool_calls),
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stats": self.stats.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Finished:
    """The answer is complete; always the last event."""

    result: GenerationResult


TokenEvent = (
    PromptPartRead | PromptProcessed | DenoisingStep | BlockCommitted | BlockEncoded | TokenWritten
)
Event = PromptProcessed | DenoisingStep | BlockCommitted | TokenWritten | Finished
