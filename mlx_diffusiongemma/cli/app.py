"""The `dgemma-mlx` command. Heavy imports happen inside commands, so --help is instant."""

import io
import os
import signal
import sys
from types import FrameType
from typing import Annotated, cast

import typer

from mlx_diffusiongemma.cli.bench import bench_app
from mlx_diffusiongemma.cli.chat import chat_command
from mlx_diffusiongemma.cli.console import describe, is_live, print_error, stderr
from mlx_diffusiongemma.cli.convert import convert_command
from mlx_diffusiongemma.cli.generate import generate_command
from mlx_diffusiongemma.cli.info import info_command
from mlx_diffusiongemma.cli.inspect import inspect_command
from mlx_diffusiongemma.cli.interrupts import INTERRUPTED
from mlx_diffusiongemma.cli.parity import parity
from mlx_diffusiongemma.cli.tune import tune_command
from mlx_diffusiongemma.errors import DGemmaError
from mlx_diffusiongemma.version import __version__

NAME = "dgemma-mlx"
# The base of all usage errors. typer does not export it, and its home differs by version.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes cut long options short, and drawing them takes 0.1 s
)
app.command("generate")(generate_command)
app.command("chat")(chat_command)
app.command("info")(info_command)
app.command("inspect")(inspect_command)
app.command("convert")(convert_command)
app.command("tune")(tune_command)
app.add_typer(parity, name="parity")
app.add_typer(bench_app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Run DiffusionGemma, a language model that writes whole blocks by denoising, with MLX.

    The answer goes to standard output, everything else to standard error.
    """
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def _prepare_streams() -> None:
    """Bytes that are no text, letters that a terminal lacks and closed streams are no crash."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "replace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave as any other way does, so that a terminal gets its cursor and its echo back."""
    raise SystemExit(128 + number)


def _usage_error(error: typer.BadParameter) -> int:
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx else NAME
    hint = f"`{path} --help` lists what can be given"
    if message.endswith("'PROMPT'"):
        hint = (
            f'`{path} "two words"`: put it in quotes, give - to read standard input, or name a '
            "file of prompts with --batch-file"
        )
    print_error(message[:1].lower() + message[1:], hint)
    return error.exit_code


def _closed_pipe() -> int:
    """Nobody reads standard output any more: write the rest of it nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def main() -> None:
    """Run the command line; every error a person can act on is one line, a hint, exit code 1."""
    _prepare_streams()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False, prog_name=NAME)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _closed_pipe()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (DGemmaError, OSError, MemoryError) as error:
        print_error(*describe(error))
        code = 1
    except _UsageError as error:
        code = _usage_error(error)
    if code == INTERRUPTED and is_live():
        stderr.print()
    raise SystemExit(code or 0)
