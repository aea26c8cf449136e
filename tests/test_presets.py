"""Presets: what they change of a checkpoint's settings, and what comes before them."""

from dataclasses import replace
from typing import get_args

import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.options import GenerationOptions, PresetName, SamplerSettings
from mlx_diffusiongemma.presets import PRESETS, settings_for

CHECKPOINT = SamplerSettings(max_denoising_steps=30, entropy_bound=0.2, t_min=0.1, t_max=0.5)


def test_every_name_has_a_preset_with_a_meaning():
    assert tuple(PRESETS) == get_args(PresetName)
    assert all(preset.meaning for preset in PRESETS.values())


def test_quality_and_no_preset_are_the_checkpoints_own():
    assert settings_for(CHECKPOINT, GenerationOptions()) == CHECKPOINT
    assert settings_for(CHECKPOINT, GenerationOptions(preset="quality")) == CHECKPOINT


def test_the_others_take_fewer_steps_each_and_keep_the_temperatures():
    steps = []
    for name in PRESETS:
        settings = settings_for(CHECKPOINT, GenerationOptions(preset=name))
        steps.append(settings.max_denoising_steps)
        assert (settings.t_min, settings.t_max) == (0.1, 0.5)
        assert replace(settings, **vars(CHECKPOINT)) == CHECKPOINT
    assert steps == [30, 15, 10]


@pytest.mark.parametrize("name", PRESETS)
def test_at_least_one_step_is_left(name):
    one = SamplerSettings(max_denoising_steps=1)
    assert settings_for(one, GenerationOptions(preset=name)).max_denoising_steps == 1


def test_what_is_given_beside_a_preset_comes_first():
    options = GenerationOptions(preset="fast", max_denoising_steps=7, stop_rule="plateau")
    settings = settings_for(CHECKPOINT, options)
    assert (settings.max_denoising_steps, settings.stop_rule) == (7, "plateau")
    alone = settings_for(CHECKPOINT, GenerationOptions(preset="fast"))
    assert settings.confidence_threshold == alone.confidence_threshold


def test_no_preset_is_for_writing_from_left_to_right():
    with pytest.raises(ConfigError, match="preset is 'fast' and mode is 'ar'"):
        GenerationOptions(mode="ar", preset="fast")


def test_a_preset_reaches_the_canvas():
    runtime = dg.load("demo")
    limits = {
        name: next(
            event.max_denoising_steps
            for event in runtime.stream("2 + 2 =", GenerationOptions(preset=name, seed=1))
            if isinstance(event, dg.DenoisingStep)
        )
        for name in PRESETS
    }
    assert limits == {"quality": 24, "balanced": 12, "fast": 8}
