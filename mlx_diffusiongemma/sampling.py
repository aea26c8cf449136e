"""Sampling maths of one denoising step: pure functions, arrays in and arrays out.

No model, no tokenizer, no random state. Source: transformers `generation_diffusion_gemma`; the
entropy bound is from arXiv 2505.24857.

Shapes: B batch, L canvas, V vocabulary.
    logits  Logits [B, L, V]    as the head wrote them, with softcap and temperature
    entropy float32 [B, L]      nats
    canvas  int32   [B, L]      token ids
    mask    bool    [B, L]      True where a position is accepted
"""

import mlx.core as mx

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Logits, LogitStatistics


def temperature(steps_left: int, max_denoising_steps: int, *, t_min: float, t_max: float) -> float:
    """Linear schedule; steps_left counts N, N-1, ..., 1, so that `t_min` is never reached."""
    return t_min + (t_max - t_min) * (steps_left / max_denoising_steps)


def logit_statistics(logits: Logits) -> LogitStatistics:
    """Entropy in nats, logsumexp and best token of each position, from one reading of the logits.

    A forbidden token (logit -inf) adds no entropy; it is NaN where the logits hold NaN or +inf,
    which `denoise` looks for.
    """
    return kernels.logit_statistics(logits)


def accept_within_bound(entropy: mx.array, entropy_bound: float) -> mx.array:
    """Accept the most certain positions while their joint uncertainty stays within the bound.

    With positions sorted by entropy (ties by position), one is accepted when the entropies before
    it sum to at most `entropy_bound` nats. So at least one position is always accepted.
    """
    return kernels.accept_within_bound(entropy, entropy_bound)
