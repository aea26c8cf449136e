"""What a step and a token cost on this machine, measured; and what follows from it.

    first need --> time two passes of each kind --> Pace <-- every answer that was written

Times depend on the prompt, so what is known is kept by its size: a power of two of its tokens. From
another size the nearest one is taken.
"""

import math
import time
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_diffusiongemma.events import GenerationStats
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings

_UNSEEN_SHARE = 0.5  # of the allowed steps: what a canvas is taken to need before one was seen


@dataclass
class Pace:
    """Measured times in seconds, by size of the prompt.

    Attributes:
        steps: of one denoising step, by (canvas length, size).
        tokens: of one token from left to right, by size.
        passes: how many steps a canvas of full length took in the last answer.
    """

    steps: dict[tuple[int, int], float] = field(default_factory=dict)
    tokens: dict[int, float] = field(default_factory=dict)
    passes: float | None = None

    def step_seconds(self, model: DiffusionGemma, canvas_length: int, prompt_tokens: int) -> float:
        """The time of a denoising step; measured on an empty prompt if nothing is known."""
        known = {size: s for (length, size), s in self.steps.items() if length == canvas_length}
        if not known:
            known[_size(0)] = self.steps[canvas_length, _size(0)] = _time_step(model, canvas_length)
        return _nearest(known, prompt_tokens)

    def token_seconds(self, model: DiffusionGemma, prompt_tokens: int) -> float:
        """The time of a token from left to right, in the same way."""
        if not self.tokens:
            self.tokens[_size(0)] = _time_token(model)
        return _nearest(self.tokens, prompt_tokens)

    def learn(self, stats: GenerationStats, canvas_length: int) -> None:
        """Take the times of an answer; those of its first pass are part of them."""
        size, passes = _size(stats.prompt_tokens), sum(stats.denoising_steps)
        if stats.mode == "ar" and stats.generated_tokens:
            self.tokens[size] = stats.denoising_seconds / stats.generated_tokens
        elif passes:
            self.steps[canvas_length, size] = stats.denoising_seconds / passes
            self.passes = passes / stats.canvases


def steps_within(seconds: float, step_seconds: float, most: int) -> int:
    """How many steps fit into `seconds`: at least one, and at most `most`."""
    return max(1, min(most, math.floor(seconds / step_seconds)))


def left_to_right_is_faster(
    pace: Pace,
    model: DiffusionGemma,
    options: GenerationOptions,
    settings: SamplerSettings,
    prompt_tokens: int,
) -> bool:
    """The rule of mode "auto", for an answer that is as long as `options.max_tokens` allows.

    max_tokens x token  <  canvases x passes x step, where a canvas is taken to need as many passes
    as in the last answer, or half of those that are allowed.
    """
    length = options.canvas_length or model.config.canvas_length
    seen = settings.max_denoising_steps * _UNSEEN_SHARE if pace.passes is None else pace.passes
    passes = max(1.0, min(seen, settings.max_denoising_steps))
    canvases = math.ceil(options.max_tokens / length)
    tokens_take = options.max_tokens * pace.token_seconds(model, prompt_tokens)
    return tokens_take < canvases * passes * pace.step_seconds(model, length, prompt_tokens)


def _size(tokens: int) -> int:
    return tokens.bit_length()


def _nearest(known: dict[int, float], prompt_tokens: int) -> float:
    return known[min(known, key=lambda size: abs(size - _size(prompt_tokens)))]


def _time_step(model: DiffusionGemma, canvas_length: int) -> float:
    """The second of two passes over a canvas, self-conditioned as all but the first are."""
    cache = model.make_cache()
    mx.eval(model.next_logits(mx.zeros((1, 1), mx.int32), cache))
    canvas = mx.zeros((1, canvas_length), mx.int32)
    logits = None
    for _ in range(2):
        started = time.perf_counter()
        logits = model.denoise(canvas, cache, logits)
        mx.eval(logits)
    return time.perf_counter() - started


def _time_token(model: DiffusionGemma) -> float:
    """The second of two passes over one token."""
    cache = model.make_cache()
    for _ in range(2):
        started = time.perf_counter()
        mx.eval(model.next_logits(mx.zeros((1, 1), mx.int32), cache), cache.arrays)
    return time.perf_counter() - started
