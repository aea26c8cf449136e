"""Denoise one canvas: the only loop over denoising steps.

    random canvas --> predict --> logits / T --> candidates, accept, renoise --> next canvas
          ^              ^            |                                              |
          |              +------------+ self-conditioning                            |
          +--------------------------------------------------------------------------+

The loop yields a `DenoisingStep` after every decoder pass and never prints, decodes or keeps time.
"""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.acceptance import SAMPLERS
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import DenoisingStep
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.stopping import STOP_RULES, Shown


def denoise(
    predict: Callable[[mx.array, mx.array | None], mx.array],
    draws: Draws,
    settings: SamplerSettings,
    *,
    canvas_length: int,
    vocab_size: int,
    canvas_index: int = 0,
) -> Iterator[DenoisingStep]:
    """Yield steps until the stop rule says that the canvas is done, or the steps run out.

    `predict(canvas, previous_logits)` is the decoder bound to its KV cache: int32 [1, L] and the
    temperature-scaled logits of the step before (None at first) to float32 logits [1, L, V]. The
    text is the argmax canvas of the last step. GenerationError when the logits are not numbers.
    """
    shape = (1, canvas_length)
    canvas = draws.initial_canvas(shape, vocab_size)
    logits: mx.array | None = None
    history: list[Shown] = []
    sampler, is_done = SAMPLERS[settings.sampler], STOP_RULES[settings.stop_rule]
    for step in range(settings.max_denoising_steps):
        heat = sampling.temperature(
            settings.max_denoising_steps - step,
            settings.max_denoising_steps,
            t_min=settings.t_min,
            t_max=settings.t_max,
        )
        logits = predict(canvas, logits) / heat
        entropy = sampling.token_entropy(logits)
        before = history[-1] if history else None
        accepted, tokens = sampler(logits, entropy, canvas, before, draws, settings)
        canvas = mx.where(accepted, tokens, draws.renoise(shape, vocab_size))

        argmax_canvas = mx.argmax(logits, axis=-1).astype(mx.int32)
        now = Shown(argmax_canvas, accepted, entropy)
        done = mx.all(is_done(now, history, settings))
        history = [*history, now][-max(settings.stability_threshold, 1) :]
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


def _not_finite(canvas_index: int, step: int) -> GenerationError:
    return GenerationError(
        f"the logits of canvas {canvas_index + 1}, denoising step {step + 1} are not finite "
        "numbers",
        hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
    )
