"""Options that choose between speed and quality: how an answer is written, and by which rules."""

from typing import Annotated, get_args

from mlx_diffusiongemma.cli.arguments import integer_option, number_option, option
from mlx_diffusiongemma.options import (
    SMALLEST_CANVAS,
    Mode,
    PresetName,
    SamplerName,
    SamplerSettings,
    StopRule,
    TokenSettings,
)

_sampler, _tokens = SamplerSettings(), TokenSettings()

WriteMode = Annotated[
    str | None,
    option(
        "--mode",
        "Write by diffusion, token after token (ar), or as should be faster (auto).",
        "diffusion",
        metavar="|".join(get_args(Mode)),
    ),
]
Temperature = Annotated[
    float | None,
    number_option("--temperature", "With ar: 0 takes the best token.", f"{_tokens.temperature:g}"),
]
TopP = Annotated[
    float | None,
    number_option("--top-p", "With ar: keep the best tokens up to this probability.", "all"),
]
TopK = Annotated[
    int | None,
    integer_option("--top-k", "With ar: keep this many of the best tokens.", "all"),
]
MinP = Annotated[
    float | None,
    number_option("--min-p", "With ar: keep tokens with this share of the best one's.", "all"),
]

Preset = Annotated[
    str | None,
    option(
        "--preset",
        "Steps, stop rule and bounds by one name; what is given beside it comes first.",
        "quality, the checkpoint's own",
        metavar="|".join(get_args(PresetName)),
    ),
]
Stopping = Annotated[
    str | None,
    option(
        "--stop-rule",
        "When a canvas may stop early.",
        _sampler.stop_rule,
        metavar="|".join(get_args(StopRule)),
    ),
]
MinSteps = Annotated[
    int | None,
    integer_option(
        "--min-steps",
        "Denoising steps that every canvas takes.",
        str(_sampler.min_denoising_steps),
    ),
]
Sampler = Annotated[
    str | None,
    option(
        "--sampler",
        "Which tokens go into the next canvas.",
        _sampler.sampler,
        metavar="|".join(get_args(SamplerName)),
    ),
]
AcceptProbability = Annotated[
    float | None,
    number_option(
        "--accept-probability",
        "With --sampler confidence: accept a token from this probability on.",
        f"{_sampler.accept_probability:g}",
    ),
]
KeepProbability = Annotated[
    float | None,
    number_option(
        "--keep-probability",
        "With --sampler confidence: keep an accepted token down to this one.",
        f"{_sampler.keep_probability:g}",
    ),
]

CanvasLength = Annotated[
    int | None,
    integer_option(
        "--canvas-length",
        f"Positions of a canvas, {SMALLEST_CANVAS} or more, for answers known to be short.",
        "the checkpoint's",
    ),
]
ShrinkCanvas = Annotated[
    bool | None,
    option(
        "--shrink-canvas/--no-shrink-canvas",
        "Cut a canvas behind its end token once two steps agree where that is.",
        "no",
    ),
]
FastSelfConditioning = Annotated[
    bool | None,
    option(
        "--fast-sc/--no-fast-sc",
        "Tell a step the likeliest tokens of the one before, where that is certainly enough.",
        "no",
    ),
]
Deadline = Annotated[
    float | None,
    number_option(
        "--deadline-ms",
        "Milliseconds for one canvas: as many steps as fit, by their measured time.",
        "none",
    ),
]
