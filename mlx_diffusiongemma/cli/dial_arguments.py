"""Options that choose between speed and quality: how an answer is written, and by which rules."""

from typing import Annotated, get_args

from mlx_diffusiongemma.cli.arguments import integer_option, number_option, option
from mlx_diffusiongemma.options import Mode, TokenSettings

_tokens = TokenSettings()

WriteMode = Annotated[
    str | None,
    option(
        "--mode",
        "Write by diffusion, or token after token (ar) with the same weights.",
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
