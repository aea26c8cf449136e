"""Settings under one name: how many steps, which stop rule, which bounds.

A preset speaks of a share of the checkpoint's own steps, because the temperature falls over the
steps that are allowed: fewer of them anneal faster, not less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_diffusiongemma.options import GenerationOptions, PresetName, SamplerSettings


@dataclass(frozen=True)
class Preset:
    """What a preset changes of a checkpoint's settings.

    Attributes:
        meaning: one line for people.
        share_of_steps: of the checkpoint's `max_denoising_steps`, at least one step.
        settings: fields of `SamplerSettings` and their values.
    """

    meaning: str
    share_of_steps: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def applied_to(self, checkpoint: SamplerSettings) -> SamplerSettings:
        """The checkpoint's settings with this preset's in their place."""
        steps = max(round(checkpoint.max_denoising_steps * self.share_of_steps), 1)
        return replace(checkpoint, max_denoising_steps=steps, **self.settings)


PRESETS: Mapping[PresetName, Preset] = {
    "quality": Preset("as the checkpoint says"),
    "balanced": Preset(
        "half of the steps; a canvas ends as soon as the model is sure",
        0.5,
        {"stop_rule": "entropy", "confidence_threshold": 0.01},
    ),
    "fast": Preset(
        "a third of the steps; a canvas ends when the model is nearly sure",
        1 / 3,
        {"stop_rule": "entropy", "confidence_threshold": 0.02},
    ),
}


def settings_for(checkpoint: SamplerSettings, options: GenerationOptions) -> SamplerSettings:
    """The checkpoint's settings, then the preset's, then what the caller asked for one by one."""
    if options.preset is not None:
        checkpoint = PRESETS[options.preset].applied_to(checkpoint)
    return checkpoint.with_options(options)
