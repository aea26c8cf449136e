"""When a canvas is done: stop rules by name, pure functions of what the steps have shown.

    stable-and-confident   the reference's: the argmax stands still and the model is sure
    entropy                the model is sure, whether or not the argmax stands still
    plateau                the accepted positions stand still and the model is sure

"Stands still" counts the `stability_threshold` steps before; "sure" is a mean entropy below
`confidence_threshold`. Shapes: B batch, L canvas.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.options import SamplerSettings, StopRule


@dataclass(frozen=True, eq=False)
class Shown:
    """What one denoising step has shown: argmax int32, accepted bool, entropy float32 [B, L]."""

    argmax_canvas: mx.array
    accepted: mx.array
    entropy: mx.array

    def first(self, length: int) -> "Shown":
        """The same of the first positions alone."""
        arrays = self.argmax_canvas, self.accepted, self.entropy
        cut = [array[:, :length] for array in arrays]
        mx.eval(cut)  # what is left lazy belongs to this thread
        return Shown(*cut)


def stable_and_confident(
    now: Shown, before: Sequence[Shown], settings: SamplerSettings
) -> mx.array:
    """bool [B]. Source: transformers `StableAndConfidentStoppingCriteria`."""
    canvases = [step.argmax_canvas for step in before]
    stable = sampling.is_stable(now.argmax_canvas, canvases, settings.stability_threshold)
    return stable & sampling.is_confident(now.entropy, settings.confidence_threshold)


def entropy_only(now: Shown, before: Sequence[Shown], settings: SamplerSettings) -> mx.array:
    """bool [B]; a token may still be changing at the step that stops."""
    return sampling.is_confident(now.entropy, settings.confidence_threshold)


def plateau(now: Shown, before: Sequence[Shown], settings: SamplerSettings) -> mx.array:
    """bool [B]; accepted positions keep being drawn anew, so their tokens may still change."""
    masks = [step.accepted for step in before]
    still = sampling.is_stable(now.accepted, masks, settings.stability_threshold)
    return still & sampling.is_confident(now.entropy, settings.confidence_threshold)


STOP_RULES: Mapping[StopRule, Callable[[Shown, Sequence[Shown], SamplerSettings], mx.array]] = {
    "stable-and-confident": stable_and_confident,
    "entropy": entropy_only,
    "plateau": plateau,
}
