"""The flags that say what an answer may hold."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mlx_diffusiongemma.constraints import CanvasConstraint, open_scaffold
from mlx_diffusiongemma.errors import ConfigError, ConstraintError

Regex = Annotated[
    str | None,
    typer.Option(
        "--regex",
        metavar="PATTERN",
        help="Write only what this regular expression matches as a whole.",
        show_default=False,
    ),
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(
        "--json-schema",
        metavar="FILE",
        help="Write only JSON that the schema in FILE accepts.",
        show_default=False,
    ),
]
Choices = Annotated[
    list[str] | None,
    typer.Option(
        "--choices",
        metavar="TEXT",
        help="Write the most probable of these texts, read off the model in one pass; give it once "
        "for each. Probabilities are in --stats, --json and --report.",
        show_default=False,
    ),
]
Scaffold = Annotated[
    Path | None,
    typer.Option(
        "--scaffold",
        metavar="FILE",
        help="Fill the holes of the template in FILE: <fill>, <fill:regex:PATTERN> or "
        "<fill:choices:a|b>.",
        show_default=False,
    ),
]

_READERS = {
    "regex": ("--regex", CanvasConstraint.regex),
    "json_schema": ("--json-schema", CanvasConstraint.json_schema),
    "choices": ("--choices", CanvasConstraint.choices),
    "scaffold": ("--scaffold", open_scaffold),
}


def constraint_of(parameters: Mapping[str, Any]) -> CanvasConstraint | None:
    """The constraint that a command's parameters ask for; ConfigError when they ask for two."""
    given = [name for name in _READERS if parameters[name] not in (None, [], ())]
    if not given:
        return None
    if len(given) > 1:
        flags = " and ".join(_READERS[name][0] for name in given)
        raise ConfigError(f"{flags} are given", hint="one says what the whole answer holds")
    flag, read = _READERS[given[0]]
    value = parameters[given[0]]
    try:
        return read(_text(value) if isinstance(value, Path) else value)
    except ConstraintError as error:
        raise ConstraintError(f"{flag}: {error}", hint=error.hint) from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text", hint="give a file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
