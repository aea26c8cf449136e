"""Options that commands share, and how they become `GenerationOptions`.

Every option defaults to None, "not asked for", so that defaults and their checks stay in
`options.py`; the help text reads them from there.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from mlx_diffusiongemma.errors import ConfigError, PromptError
from mlx_diffusiongemma.hub import DEFAULT_MODEL
from mlx_diffusiongemma.options import DEFAULT_MAX_TOKENS, GenerationOptions, SamplerSettings

_sampler = SamplerSettings()
_SHOWN = 60  # characters of bad input in an error
_SHORT_FLAGS = {"max_denoising_steps": "--steps", "min_denoising_steps": "--min-steps"}
_FIELDS = tuple(field.name for field in fields(GenerationOptions))


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an integer") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def option(flag: str, help_text: str, default: str, **kind: Any) -> Any:
    """An option that is None when it is not given; its help says what that means."""
    return typer.Option(flag, help=f"{help_text} [{default}]", show_default=False, **kind)


def integer_option(flag: str, help_text: str, default: str) -> Any:
    """An option that takes a whole number."""
    return option(flag, help_text, default, parser=_integer, metavar="N")


def number_option(flag: str, help_text: str, default: str) -> Any:
    """An option that takes a number."""
    return option(flag, help_text, default, parser=_number, metavar="X")


def _checkpoint_or(value: float) -> str:
    return f"the checkpoint's, else {value:g}"


def _start_logging(wanted: bool) -> None:
    if wanted:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        logging.getLogger("mlx_diffusiongemma").setLevel(logging.DEBUG)


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="`demo` (ships with this program), a folder, or a Hub model such as "
        f"{DEFAULT_MODEL}, the default.",
        show_default=False,
    ),
]
Revision = Annotated[
    str | None,
    option("--revision", "Branch, tag or commit of a Hub model.", "main", metavar="REVISION"),
]
Dtype = Annotated[
    str | None,
    option(
        "--dtype",
        "Compute in float32, float16 or bfloat16.",
        "what suits the device",
        metavar="DTYPE",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Load even if memory looks too small.")]

System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System message.", show_default=False),
]
Thinking = Annotated[
    bool | None,
    option(
        "--thinking/--no-thinking",
        "Let the model think first, where its chat template can ask for it.",
        "the template's default",
    ),
]
ChatTemplate = Annotated[
    bool | None,
    option(
        "--chat-template/--no-chat-template",
        "Put PROMPT into the checkpoint's chat template, or send it as it is.",
        "put it in",
    ),
]

RetryEmpty = Annotated[
    bool | None,
    option(
        "--retry-empty/--no-retry-empty",
        "Give the first canvas one more try, from new noise, when it says nothing at all.",
        "give it",
    ),
]

MaxTokens = Annotated[
    int | None,
    integer_option("--max-tokens", "Most tokens to write.", str(DEFAULT_MAX_TOKENS)),
]
Seed = Annotated[
    int | None,
    integer_option("--seed", "Same seed, same text.", "a new one each time"),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End the answer before this text; may be given several times.",
        show_default=False,
    ),
]
Steps = Annotated[
    int | None,
    integer_option(
        "--steps",
        "Most denoising steps for one canvas.",
        _checkpoint_or(_sampler.max_denoising_steps),
    ),
]
EntropyBound = Annotated[
    float | None,
    number_option(
        "--entropy-bound",
        "Joint entropy in nats up to which a step accepts tokens.",
        _checkpoint_or(_sampler.entropy_bound),
    ),
]
TMin = Annotated[
    float | None,
    number_option(
        "--t-min", "Temperature that the steps run towards.", _checkpoint_or(_sampler.t_min)
    ),
]
TMax = Annotated[
    float | None,
    number_option("--t-max", "Temperature of the first step.", _checkpoint_or(_sampler.t_max)),
]
StabilityThreshold = Annotated[
    int | None,
    integer_option(
        "--stability-threshold",
        "A canvas may stop early once this many steps before agree with it.",
        _checkpoint_or(_sampler.stability_threshold),
    ),
]
ConfidenceThreshold = Annotated[
    float | None,
    number_option(
        "--confidence-threshold",
        "A canvas may stop early below this mean entropy in nats.",
        _checkpoint_or(_sampler.confidence_threshold),
    ),
]

PromptCache = Annotated[
    Path | None,
    typer.Option(
        "--prompt-cache-file",
        metavar="FILE",
        help="Keep what was read of the prompt in FILE: written if it is not there, else what it "
        "has in common with this prompt is not read again.",
        show_default=False,
    ),
]

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Draw the canvas while it is denoised: settled tokens plain, changing ones "
        "underlined, noise as dots.",
    ),
]
Stats = Annotated[bool, typer.Option("--stats", help="Say afterwards what the answer cost.")]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write what the answer cost into FILE, as JSON: steps, times, tokens, memory.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Log what happens, on standard error.", callback=_start_logging),
]


def generation_options(parameters: Mapping[str, Any]) -> GenerationOptions:
    """Options for one generation, from those parameters of a command that are named like them.

    Errors name the flag that was typed instead of the field.
    """
    given = {name: parameters[name] for name in _FIELDS if parameters.get(name) is not None}
    try:
        return GenerationOptions(**given)
    except ConfigError as error:
        hint = error.hint and _with_flags(error.hint)
        raise ConfigError(_with_flags(str(error)), hint=hint) from None


def check_watch(watch: bool, options: GenerationOptions) -> None:
    """Raise ConfigError when there will be no canvas to watch."""
    if watch and options.mode == "ar":
        raise ConfigError(
            "--watch is given and --mode is 'ar'", hint="there is no canvas to draw; leave one out"
        )


def _with_flags(message: str) -> str:
    fields = "|".join(name for name in _FIELDS if name != "constraint")
    return re.sub(rf"\b({fields})\b", lambda match: flag(match[0]), message)


def flag(field: str) -> str:
    """The flag that sets a field of `GenerationOptions`."""
    return _SHORT_FLAGS.get(field, "--" + field.replace("_", "-"))


def check_text(what: str, text: str) -> None:
    """Raise PromptError when the shell or a pipe handed over bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + " ..."
        raise PromptError(f"{what} is not valid UTF-8: {shown}") from None
