"""Options of `dgemma-mlx convert`, and how they become a recipe and a plan's settings.

mlx-lm's spellings (`--hf-path`, `--mlx-path`, `-q`, `--q-bits`, ...) mean the same as ours.
"""

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import (
    DEFAULT_RECIPE,
    RECIPES,
    Recipe,
    find_recipe,
    uniform_recipe,
    weight_bytes,
    with_changes,
)

_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNPACKED = ("none", "16", "bf16")
# Groups that each mode takes when none are asked for.
_GROUPS = {"affine": 64, "mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
_BITS = {"affine": 4, "mxfp4": 4, "mxfp8": 8, "nvfp4": 4}


def recipe_lines() -> list[str]:
    """The recipes for people: reason, cost, and the released model's size and needs."""
    lines = []
    for recipe in RECIPES.values():
        default = " (default)" if recipe.name == DEFAULT_RECIPE else ""
        lines += [
            f"{recipe.name}{default}",
            f"    {recipe.reason}",
            f"    {recipe.cost}",
            f"    the released model takes {weight_bytes(recipe) / 1e9:.1f} GB: {recipe.fit}",
        ]
    return lines


def _print_recipes(wanted: bool) -> None:
    if wanted:
        print("\n".join(recipe_lines()))
        raise typer.Exit


SourceArgument = Annotated[
    str | None,
    typer.Argument(metavar="SOURCE", help="A folder, `demo`, or a Hub model `org/name`."),
]
HfPath = Annotated[
    str | None, typer.Option("--hf-path", metavar="SOURCE", help="The same as SOURCE.")
]
Output = Annotated[
    str | None,
    typer.Option("--out", "--mlx-path", "-o", metavar="DIR", help="The folder to make."),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="NAME",
        help=f"One of {', '.join(RECIPES)} [{DEFAULT_RECIPE}]; `--list-recipes` explains them.",
    ),
]
ListRecipes = Annotated[
    bool,
    typer.Option(
        "--list-recipes",
        callback=_print_recipes,
        is_eager=True,
        help="Explain the recipes and stop.",
    ),
]
Quantize = Annotated[
    bool,
    typer.Option("-q", "--quantize", help="As in mlx-lm: 4 bits in groups of 64 unless said."),
]
Bits = Annotated[
    str | None,
    typer.Option("--bits", "--q-bits", metavar="N", help="One width for everything, no recipe."),
]
GroupSize = Annotated[
    str | None,
    typer.Option("--group-size", "--q-group-size", metavar="N", help="Values that share a scale."),
]
Mode = Annotated[
    str | None,
    typer.Option("--mode", "--q-mode", metavar="MODE", help="affine, mxfp4, mxfp8 or nvfp4."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATTERN=BITS[:GROUP[:MODE]]",
        help="Say it otherwise for some modules: a class (experts, attention, ...), a path with "
        "*, or re:REGEX; BITS `none` leaves them unpacked. May be given several times.",
    ),
]
OutputDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="DTYPE", help="bfloat16 or float16, for what is not packed [bfloat16]"
    ),
]
Search = Annotated[
    bool | None,
    typer.Option("--search/--no-search", help="Choose scales and biases by least squares; slower."),
]
MaxShardSize = Annotated[
    str,
    typer.Option("--max-shard-size", metavar="SIZE", help="Largest file, such as 5GB or 500MB."),
]
Dequantize = Annotated[
    bool,
    typer.Option("--dequantize", help="Unpack everything, into a folder that transformers loads."),
]
KeepVision = Annotated[
    bool, typer.Option("--keep-vision/--no-vision", help="Keep the image side as it is.")
]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Leave out tensors that nobody knows.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be written, and stop.")]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Read the output back and compare.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
LowDisk = Annotated[
    bool,
    typer.Option("--low-disk", help="Fetch a Hub model file by file; delete each after use."),
]
UploadRepo = Annotated[
    str | None,
    typer.Option("--upload-repo", metavar="REPO", help="Send the output to the Hub."),
]


@dataclass(frozen=True)
class RecipeChoice:
    """What was typed about the recipe."""

    name: str | None
    quantize: bool
    bits: str | None
    group_size: str | None
    mode: str | None
    overrides: tuple[str, ...]
    dtype: str | None
    search: bool | None
    dequantize: bool


def choose_recipe(choice: RecipeChoice) -> Recipe:
    """The recipe that was asked for; ConfigError names the option that is wrong."""
    by_bits = {"--bits": choice.bits, "--mode": choice.mode, "--group-size": choice.group_size}
    typed = ["-q"] * choice.quantize
    typed += [flag for flag, value in by_bits.items() if value is not None]
    if choice.dequantize:
        typed += ["--recipe"] * (choice.name is not None)
        typed += ["--set"] * bool(choice.overrides) + ["--search"] * bool(choice.search)
        if typed:
            raise ConfigError(
                f"--dequantize unpacks everything, and {typed[0]} asks for packing",
                hint="leave one of them out",
            )
        return with_changes(RECIPES["bf16"], dtype=choice.dtype)
    if typed and choice.name is not None:
        raise ConfigError(
            f"--recipe {choice.name} and {typed[0]} both say how to pack", hint="give one of them"
        )
    name = DEFAULT_RECIPE if choice.name is None else choice.name
    recipe = _by_bits(choice) if typed else find_recipe(name)
    return with_changes(
        recipe,
        dtype=choice.dtype,
        overrides=tuple(map(parse_override, choice.overrides)),
        search=choice.search,
    )


def _by_bits(choice: RecipeChoice) -> Recipe:
    mode = "affine" if choice.mode is None else choice.mode
    if mode not in _GROUPS:
        raise ConfigError(f"--mode is {mode!r}", hint=f"it is one of {', '.join(_GROUPS)}")
    bits = _integer("--bits", choice.bits, _BITS[mode])
    group_size = _integer("--group-size", choice.group_size, _GROUPS[mode])
    return uniform_recipe(Quantization(bits, group_size, mode))


def _integer(flag: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{flag} is {text!r}", hint=f"{flag} takes a whole number")
    return int(text)


def parse_override(text: str) -> tuple[str, Quantization | None]:
    """`PATTERN=BITS[:GROUP[:MODE]]` -> (pattern, how); ConfigError shows the text."""
    pattern, equals, value = text.rpartition("=")
    if not equals or not pattern:
        raise ConfigError(
            f"--set has {text!r}", hint="write PATTERN=BITS[:GROUP[:MODE]], such as `experts=3:64`"
        )
    if value.lower() in _UNPACKED:
        return pattern, None
    bits, *rest = value.split(":")
    group_size, mode = (*rest, "", "")[:2]
    mode = mode or "affine"
    if len(rest) > 2 or mode not in _GROUPS:
        raise ConfigError(
            f"--set has {text!r}",
            hint=f"write PATTERN=BITS[:GROUP[:MODE]]; modes are {', '.join(_GROUPS)}",
        )
    how = Quantization(
        _integer(f"BITS of --set {text}", bits, 0),
        _integer(f"GROUP of --set {text}", group_size or None, _GROUPS[mode]),
        mode,
    )
    return pattern, how


def parse_size(text: str) -> int:
    """`5GB` -> 5,000,000,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text.strip().upper())
    unit = match[2] if match and match[2].endswith("B") or match and not match[2] else None
    size = int(float(match[1]) * _SIZES[unit]) if match and unit is not None else 0
    if size < 1:
        raise ConfigError(f"--max-shard-size is {text!r}", hint="write a size such as 5GB or 500MB")
    return size
