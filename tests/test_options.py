"""Settings: the checkpoint's, then the caller's; absent ones take the reference's defaults."""

import math

import pytest

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings

# Written out once more: these are the reference's numbers, not whatever options.py says.
DEFAULTS = {
    "max_denoising_steps": 48,
    "entropy_bound": 0.1,
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
}
# Not the reference's: no generation_config.json sets them.
OWN = {
    "stop_rule": "stable-and-confident",
    "sampler": "entropy-bound",
    "min_denoising_steps": 1,
    "accept_probability": 0.9,
    "keep_probability": 0.5,
}
OTHERS = {
    "max_denoising_steps": 7,
    "entropy_bound": 0.25,
    "t_min": 0.1,
    "t_max": 1.5,
    "stability_threshold": 3,
    "confidence_threshold": 0.5,
}
BAD = {
    "max_denoising_steps": [0, -1, 1.5, True, "8"],
    "entropy_bound": [0, -0.1, math.nan, math.inf, True, "0.1"],
    "t_min": [-0.1, math.nan, math.inf, "cold"],
    "t_max": [0, -1, 1e-38, 9.9e-7, 1.1e6, 1e99, math.nan, math.inf, 10**400, [0.8]],
    "stability_threshold": [-1, 0.5, False, "1"],
    "confidence_threshold": [0, -0.005, math.nan, math.inf, 10**400, {}],
}
RANGES = {
    "max_denoising_steps": "an integer of 1 or more",
    "entropy_bound": "a finite number above 0",
    "t_min": "a finite number of 0 or more",
    "t_max": "a finite number of 1e-06 or more and at most 1000000",
    "stability_threshold": "an integer of 0 or more",
    "confidence_threshold": "a finite number above 0",
    "min_denoising_steps": "an integer of 1 or more",
    "accept_probability": "a finite number above 0 and at most 1",
    "keep_probability": "a finite number of 0 or more and at most 1",
    "canvas_length": "an integer of 16 or more",
    "deadline_ms": "a finite number above 0",
    "stop_rule": "'stable-and-confident', 'entropy' or 'plateau'",
    "sampler": "'entropy-bound', 'argmax' or 'confidence'",
    "preset": "'quality', 'balanced' or 'fast'",
    "max_tokens": "an integer of 1 or more",
    "seed": "an integer of 0 or more and below 18446744073709551616",
}
BAD_OPTIONS = BAD | {
    "max_tokens": [0, -1, 2.0, None, True],
    "seed": [-1, 2**64, 1.0, "a"],
    "canvas_length": [15, 0, 16.0],
    "deadline_ms": [0, -1, math.nan],
    "min_denoising_steps": [0, 1.5],
    "accept_probability": [0, 1.1, math.nan],
    "keep_probability": [-0.1, 1.1, "half"],
    "stop_rule": ["never", 1],
    "sampler": ["EntropyBoundSamplerConfig", True],
    "preset": ["best", 0],
}

each_setting = pytest.mark.parametrize("name", DEFAULTS)


def bad(values):
    return pytest.mark.parametrize(
        ("name", "value"),
        [(name, value) for name, choices in values.items() for value in choices],
        ids=lambda value: repr(value)[:20] if not isinstance(value, str) else value,
    )


def generation_config(**settings):
    """The object of a generation_config.json with some settings where the reference has them."""
    values = dict(settings)
    if "entropy_bound" in values:
        bound = values.pop("entropy_bound")
        values["sampler_config"] = {
            "_cls_name": "EntropyBoundSamplerConfig",
            "entropy_bound": bound,
        }
    return values


def test_an_empty_generation_config_takes_the_defaults():
    assert vars(SamplerSettings.from_generation_config({})) == DEFAULTS | OWN


def test_every_setting_is_read():
    assert vars(SamplerSettings.from_generation_config(generation_config(**OTHERS))) == OTHERS | OWN


@each_setting
def test_an_absent_setting_takes_its_default(name):
    values = generation_config(**{key: OTHERS[key] for key in OTHERS if key != name})
    expected = OTHERS | {name: DEFAULTS[name]}
    assert vars(SamplerSettings.from_generation_config(values)) == expected | OWN


@each_setting
def test_a_null_setting_takes_its_default(name):
    values = generation_config(**OTHERS | {name: None})
    expected = OTHERS | {name: DEFAULTS[name]}
    assert vars(SamplerSettings.from_generation_config(values)) == expected | OWN


@pytest.mark.parametrize("sampler", [None, {}, {"_cls_name": None}])
def test_a_sampler_without_a_name_is_the_one_we_have(sampler):
    values = {"sampler_config": sampler}
    assert vars(SamplerSettings.from_generation_config(values)) == DEFAULTS | OWN


@pytest.mark.parametrize("sampler", [{"_cls_name": "AncestralSamplerConfig"}, "ancestral", 0, []])
def test_another_sampler_is_refused_by_name(sampler):
    with pytest.raises(ConfigError, match="asks for the sampler") as caught:
        SamplerSettings.from_generation_config({"sampler_config": sampler})
    assert repr(sampler) in str(caught.value)
    assert "EntropyBoundSamplerConfig" in caught.value.hint


@bad(BAD)
def test_a_bad_setting_of_the_checkpoint_is_refused_with_its_range(name, value):
    with pytest.raises(ConfigError) as caught:
        SamplerSettings.from_generation_config(generation_config(**{name: value}))
    assert str(caught.value) == f"in generation_config.json {name} is {value!r}"
    assert caught.value.hint == f"{name} must be {RANGES[name]}"


@bad(BAD_OPTIONS)
def test_a_bad_option_is_refused_with_its_range(name, value):
    with pytest.raises(ConfigError) as caught:
        GenerationOptions(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}"
    assert caught.value.hint == f"{name} must be {RANGES[name]}"


@each_setting
def test_a_complete_setting_is_never_none(name):
    with pytest.raises(ConfigError, match=f"{name} is None"):
        SamplerSettings(**{name: None})


def test_the_smallest_values_are_allowed():
    SamplerSettings(t_min=0, stability_threshold=0, max_denoising_steps=1, entropy_bound=1e-9)
    SamplerSettings(t_min=0, t_max=1e-6)
    SamplerSettings(t_max=1e6)
    GenerationOptions(max_tokens=1, seed=0)
    GenerationOptions(seed=2**64 - 1)


@each_setting
def test_the_caller_comes_before_the_checkpoint(name):
    settings = SamplerSettings(**OTHERS).with_options(GenerationOptions(**{name: DEFAULTS[name]}))
    assert vars(settings) == OTHERS | OWN | {name: DEFAULTS[name]}


def test_options_that_are_not_set_leave_the_checkpoint_alone():
    assert vars(SamplerSettings(**OTHERS).with_options(GenerationOptions())) == OTHERS | OWN


@pytest.mark.parametrize("name", OWN)
def test_our_own_settings_are_the_callers_and_never_the_checkpoints(name):
    other = {"stop_rule": "entropy", "sampler": "argmax"}.get(name, 1)
    values = generation_config(**{name: other})
    assert vars(SamplerSettings.from_generation_config(values)) == DEFAULTS | OWN
    settings = SamplerSettings().with_options(GenerationOptions(**{name: other}))
    assert vars(settings) == DEFAULTS | OWN | {name: other}


def test_the_temperatures_must_fall():
    for low, high in (0.8, 0.8), (0.9, 0.8):
        with pytest.raises(ConfigError, match=f"t_min is {low} and t_max is {high}") as caught:
            GenerationOptions(t_min=low, t_max=high)
        assert caught.value.hint == "t_min must be below t_max"


def test_a_temperature_is_held_against_the_checkpoints_other_one():
    options = GenerationOptions(t_min=0.9)
    with pytest.raises(ConfigError, match="t_min is 0.9 and t_max is 0.8"):
        SamplerSettings().with_options(options)


@pytest.mark.parametrize("stop", ["end", ["end"], ("end",)])
def test_stop_strings_may_be_one_or_several(stop):
    assert GenerationOptions(stop=stop).stop == ("end",)


@pytest.mark.parametrize("stop", ["", ["a", ""], [1], 7, None])
def test_a_stop_must_be_text(stop):
    with pytest.raises(ConfigError, match="stop is") as caught:
        GenerationOptions(stop=stop)
    assert repr(stop) in str(caught.value)


@pytest.mark.parametrize("name", ["chat_template", "retry_empty", "fast_self_conditioning"])
@pytest.mark.parametrize("value", ["no", None, 2])
def test_a_switch_is_on_or_off(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        GenerationOptions(**{name: value})


def test_thinking_is_on_or_off_or_the_templates_own():
    for thinking in (True, False, None):
        assert GenerationOptions(thinking=thinking).thinking is thinking
    with pytest.raises(ConfigError, match="thinking is 'a lot'"):
        GenerationOptions(thinking="a lot")
