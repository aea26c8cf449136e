"""Denoise one canvas: the only loop over denoising steps.

    random canvas --> predict --> logits / T --> candidates, accept, renoise --> next canvas
          ^              ^            |                                              |
          |              +------------+ self-conditioning                            |
          +--------------------------------------------------------------------------+

The loop yields a `DenoisingStep` after every decoder pass and never prints, decodes or keeps time.
"""

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.acceptance import SAMPLERS
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import DenoisingStep
from mlx_diffusiongemma.options import SMALLEST_CANVAS, SamplerSettings
from mlx_diffusiongemma.stopping import STOP_RULES, Shown

_SHRINK_STEP = 8  # positions; a canvas is cut to a multiple of this


def denoise(
    predict: Callable[[mx.array, mx.array | None], mx.array],
    draws: Draws,
    settings: SamplerSettings,
    *,
    canvas_length: int,
    vocab_size: int,
    canvas_index: int = 0,
    shrink_at: frozenset[int] = frozenset(),
) -> Iterator[DenoisingStep]:
    """Yield steps until the stop rule says that the canvas is done, or the steps run out.

    `predict(canvas, previous_logits)` is the decoder bound to its KV cache: int32 [1, L] and the
    temperature-scaled logits of the step before (None at first) to float32 logits [1, L, V]. The
    text is the argmax canvas of the last step. GenerationError when the logits are not numbers.

    With end tokens in `shrink_at` the canvas gets shorter where two steps agree on the first of
    them: later steps cost less, and see less.
    """
    shape = (1, canvas_length)
    canvas = draws.initial_canvas(shape, vocab_size)
    logits: mx.array | None = None
    history: list[Shown] = []
    sampler, is_done = SAMPLERS[settings.sampler], STOP_RULES[settings.stop_rule]
    for step in range(settings.max_denoising_steps):
        logits = predict(canvas, logits) / _temperature(step, settings)
        statistics = sampling.logit_statistics(logits)
        entropy, argmax_canvas = statistics.entropy, statistics.best
        before = history[-1] if history else None
        accepted, tokens = sampler(logits, statistics, canvas, before, draws, settings)
        canvas = mx.where(accepted, tokens, draws.renoise(shape, vocab_size))

        now = Shown(argmax_canvas, accepted, entropy)
        done = mx.all(is_done(now, history, settings))
        history = [*history, now][-max(settings.stability_threshold, 2) :]
        flags = mx.stack([done, mx.all(mx.isfinite(entropy))])
        # What is left lazy belongs to this thread: a consumer in another one could not read it.
        mx.eval(flags, argmax_canvas, accepted, entropy)
        converged, finite = flags.tolist()  # type: ignore[misc]
        if not finite:
            raise _not_finite(canvas_index, step)
        converged = converged and step + 1 >= settings.min_denoising_steps
        if not converged and step + 1 < settings.max_denoising_steps:
            mx.async_eval(canvas)  # the next step may be asked for in another thread, too
        yield DenoisingStep(
            canvas_index=canvas_index,
            step=step,
            max_denoising_steps=settings.max_denoising_steps,
            argmax_canvas=argmax_canvas,
            accepted=accepted,
            entropy=entropy,
            converged=bool(converged),
        )
        if converged:
            return
        if shrink_at and (keep := _shrunk_length(history, shrink_at)) < shape[1]:
            shape = (1, keep)
            canvas, logits = canvas[:, :keep], logits[:, :keep]
            history = [shown.first(keep) for shown in history]


def _temperature(step: int, settings: SamplerSettings) -> float:
    most = settings.max_denoising_steps
    return sampling.temperature(most - step, most, t_min=settings.t_min, t_max=settings.t_max)


def _not_finite(canvas_index: int, step: int) -> GenerationError:
    return GenerationError(
        f"the logits of canvas {canvas_index + 1}, denoising step {step + 1} are not finite "
        "numbers",
        hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
    )


def _shrunk_length(history: Sequence[Shown], end_token_ids: frozenset[int]) -> int:
    """How much of the canvas is left when what follows a settled end token is cut off."""
    rows = [shown.argmax_canvas[0].tolist() for shown in history[-2:]]
    ends = [
        next((i for i, token in enumerate(row) if token in end_token_ids), len(row))  # type: ignore[arg-type]
        for row in rows
    ]
    length = len(rows[-1])  # type: ignore[arg-type]
    if len(ends) < 2 or ends[0] != ends[1]:
        return length
    return min(length, max(SMALLEST_CANVAS, -(-(ends[1] + 1) // _SHRINK_STEP) * _SHRINK_STEP))
