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
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import DenoisingStep
from mlx_diffusiongemma.options import SamplerSettings


def denoise(
    predict: Callable[[mx.array, mx.array | None], mx.array],
    draws: Draws,
    settings: SamplerSettings,
    *,
    canvas_length: int,
    vocab_size: int,
    canvas_index: int = 0,
) -> Iterator[DenoisingStep]:
    """Yield steps until the canvas is stable and confident, or the steps run out.

    `predict(canvas, previous_logits)` is the decoder bound to its KV cache: int32 [1, L] and the
    temperature-scaled logits of the step before (None at first) to float32 logits [1, L, V]. The
    text is the argmax canvas of the last step. GenerationError when the logits are not numbers.
    """
    shape = (1, canvas_length)
    canvas = draws.initial_canvas(shape, vocab_size)
    logits: mx.array | None = None
    history: list[mx.array] = []
    for step in range(settings.max_denoising_steps):
        heat = sampling.temperature(
            settings.max_denoising_steps - step,
            settings.max_denoising_steps,
            t_min=settings.t_min,
            t_max=settings.t_max,
        )
        logits = predict(canvas, logits) / heat
        entropy = sampling.token_entropy(logits)
        accepted = sampling.accept_within_bound(entropy, settings.entropy_bound)
        candidates = draws.candidates(logits)
        canvas = mx.where(accepted, candidates, draws.renoise(shape, vocab_size))

        argmax_canvas = mx.argmax(logits, axis=-1).astype(mx.int32)
        stable = sampling.is_stable(argmax_canvas, history, settings.stability_threshold)
        confident = sampling.is_confident(entropy, settings.confidence_threshold)
        history = [*history, argmax_canvas][-max(settings.stability_threshold, 1) :]
        flags = mx.stack([mx.all(stable & confident), mx.all(mx.isfinite(entropy))])
        # What is left lazy belongs to this thread: a consumer in another one could not read it.
        mx.eval(flags, argmax_canvas, accepted, entropy)
        converged, finite = flags.tolist()  # type: ignore[misc]
        if not finite:
            raise GenerationError(
                f"the logits of canvas {canvas_index + 1}, denoising step {step + 1} are not "
                "finite numbers",
                hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
            )
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
