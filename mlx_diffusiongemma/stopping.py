"""When a canvas is done: stop rules by name, pure functions of what the steps have shown.

    stable-and-confident   the reference's: the argmax stands still and the model is sure
    entropy                the model is sure, whether or not the argmax stands still
    plateau                the accepted positions stand still and the model is sure

"Stands still" counts the `stability_threshold` steps before; "sure" is a mean entropy below
`confidence_threshold`. The rules see a few numbers of each step, which are read from the device
together. Shapes: B batch, L canvas.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

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


@dataclass(frozen=True)
class Standing:
    """Where a canvas stands after a step.

    Attributes:
        mean_entropy: of the step, in nats.
        best_kept: how many steps before have the same best token everywhere, without a gap.
        accepted_kept: the same of the accepted positions.
    """

    mean_entropy: float
    best_kept: int
    accepted_kept: int

    def after(self, mean_entropy: float, best_changed: bool, accepted_changed: bool) -> "Standing":
        """The standing after one more step."""
        return Standing(
            mean_entropy,
            0 if best_changed else self.best_kept + 1,
            0 if accepted_changed else self.accepted_kept + 1,
        )


BEGINNING = Standing(0.0, -1, -1)  # before any step


def standing_of(history: Sequence[Shown]) -> Standing:
    """The standing after the last of some steps, as far back as they go; at least one."""
    *before, now = history

    def kept(arrays: Sequence[mx.array], last: mx.array) -> int:
        changed = (i for i, one in enumerate(reversed(arrays)) if not mx.array_equal(one, last))
        return next(changed, len(arrays))

    return Standing(
        mx.mean(now.entropy).item(),  # type: ignore[arg-type]
        kept([step.argmax_canvas for step in before], now.argmax_canvas),
        kept([step.accepted for step in before], now.accepted),
    )


def stable_and_confident(now: Standing, settings: SamplerSettings) -> bool:
    """Source: transformers `StableAndConfidentStoppingCriteria`."""
    return now.best_kept >= settings.stability_threshold and entropy_only(now, settings)


def entropy_only(now: Standing, settings: SamplerSettings) -> bool:
    """A token may still be changing at the step that stops."""
    return now.mean_entropy < settings.confidence_threshold


def plateau(now: Standing, settings: SamplerSettings) -> bool:
    """Accepted positions keep being drawn anew, so their tokens may still change."""
    return now.accepted_kept >= settings.stability_threshold and entropy_only(now, settings)


STOP_RULES: Mapping[StopRule, Callable[[Standing, SamplerSettings], bool]] = {
    "stable-and-confident": stable_and_confident,
    "entropy": entropy_only,
    "plateau": plateau,
}
