"""The flags of a file of prompts, and which others go with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mlx_diffusiongemma.cli.arguments import check_text, integer_option
from mlx_diffusiongemma.errors import ConfigError

BatchFile = Annotated[
    Path | None,
    typer.Option(
        "--batch-file",
        metavar="FILE",
        help='Answer a file of prompts instead, one {"prompt": ...} or {"messages": ...} a line, '
        "with an id and settings of its own if it likes. An interrupted run goes on where it was.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="With --batch-file: where the answers go, one line each, in order.",
        show_default=False,
    ),
]
Rows = Annotated[
    int | None,
    integer_option(
        "--rows", "With --batch-file: how many are answered at once.", "what fits, at most 8"
    ),
]

# What one answer has and a file of them does not, by flag.
_OF_ONE_ANSWER = {
    "prompt": "PROMPT",
    "prompt_cache_file": "--prompt-cache-file",
    "watch": "--watch",
    "stats": "--stats",
    "report": "--report",
    "as_json": "--json",
}


@dataclass(frozen=True)
class Job:
    """A file of prompts to answer into another file."""

    prompts: Path
    out: Path
    rows: int | None
    system: str | None


def job_of(parameters: Mapping[str, Any]) -> Job | None:
    """The job that the flags of `generate` ask for, if they do; ConfigError when they disagree."""
    prompts, out, rows = (parameters[name] for name in ("batch_file", "out", "rows"))
    if prompts is None:
        for flag, value in (("--out", out), ("--rows", rows)):
            if value is not None:
                raise ConfigError(
                    f"{flag} is given without --batch-file", hint="name the file of prompts"
                )
        return None
    for name, flag in _OF_ONE_ANSWER.items():
        if parameters[name]:
            raise ConfigError(
                f"{flag} is given with --batch-file",
                hint="each line of --out has the text and what it cost; leave it out",
            )
    system = parameters["system"]
    if system is not None and parameters["chat_template"] is False:
        raise ConfigError(
            "--system is given with --no-chat-template",
            hint="only a chat template has a place for it; write it into the prompts",
        )
    if out is None:
        raise ConfigError("--batch-file is given without --out", hint="name a file for the answers")
    for flag, path in ("--batch-file", prompts), ("--out", out):
        if str(path) == "-":
            raise ConfigError(f"{flag} is -", hint="a job goes on from its files: name one")
    if out.resolve() == prompts.resolve():
        raise ConfigError(f"--out is the file of prompts, `{out}`", hint="name another file")
    if system is not None:
        check_text("--system", system)
    return Job(prompts, out, rows, system)
