"""Which tokens go into the next canvas: samplers by name.

    entropy-bound   the reference's: candidates are drawn; the most certain positions take them
    argmax          the same positions, but they take the most probable token
    confidence      positions above a probability take the most probable token, and keep it while
                    it stays above a lower one; nothing is frozen, every step checks them all

Positions that are not accepted are renoised by the caller. Shapes: B batch, L canvas, V vocabulary.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.kernels import Logits, LogitStatistics
from mlx_diffusiongemma.options import SamplerName, SamplerSettings
from mlx_diffusiongemma.stopping import Shown

Accepted = tuple[mx.array, mx.array]
Sampler = Callable[
    [Logits, LogitStatistics, mx.array, Shown | None, Draws, SamplerSettings], Accepted
]


def entropy_bound(
    logits: Logits,
    statistics: LogitStatistics,
    canvas: mx.array,
    before: Shown | None,
    draws: Draws,
    settings: SamplerSettings,
) -> Accepted:
    """Accepted bool [B, L] and tokens int32 [B, L]. Source: arXiv 2505.24857."""
    return sampling.accept_within_bound(
        statistics.entropy, settings.entropy_bound
    ), draws.candidates(logits, statistics)


def argmax(
    logits: Logits,
    statistics: LogitStatistics,
    canvas: mx.array,
    before: Shown | None,
    draws: Draws,
    settings: SamplerSettings,
) -> Accepted:
    """Accepted bool [B, L] and tokens int32 [B, L]; chance decides only what is renoised."""
    return sampling.accept_within_bound(statistics.entropy, settings.entropy_bound), statistics.best


def confidence(
    logits: Logits,
    statistics: LogitStatistics,
    canvas: mx.array,
    before: Shown | None,
    draws: Draws,
    settings: SamplerSettings,
) -> Accepted:
    """Accepted bool [B, L] and tokens int32 [B, L]; the most probable position is always accepted.

    A position that was accepted in the step before keeps its token while that has at least
    `keep_probability`; another token replaces it as soon as that reaches `accept_probability`.
    """
    total, best = statistics.normaliser, statistics.best
    best_probability = mx.exp(logits.of(best) - total)
    sure = best_probability >= settings.accept_probability
    sure = sure | (mx.arange(best.shape[1]) == mx.argmax(best_probability, axis=-1, keepdims=True))
    if before is None:
        return sure, best
    held = mx.exp(logits.of(canvas) - total)
    kept = before.accepted & (held >= settings.keep_probability)
    return sure | kept, mx.where(sure, best, canvas)


SAMPLERS: Mapping[SamplerName, Sampler] = {
    "entropy-bound": entropy_bound,
    "argmax": argmax,
    "confidence": confidence,
}
