"""`dgemma-mlx bench soak`: does a process stay as fast and as small over hundreds of requests."""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import counting, note, write_stdout
from mlx_diffusiongemma.cli.loading import find_model
from mlx_diffusiongemma.errors import ConfigError


def soak_command(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="`demo`, a folder or a Hub model.")
    ] = "demo",
    revision: arguments.Revision = None,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", help="How many; a multiple of 25.")
    ] = 500,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--no-fresh",
            help="Start a second process at the end and compare with it, in turns; it needs the "
            "memory of the model once more.",
        ),
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all numbers as JSON.")
    ] = None,
) -> None:
    """Ask one process for hundreds of answers and say whether it stays as it was.

    Answers of one to four canvases, watched, cancelled, failing, in sessions, left to right. Exits
    with 1 when a bar is missed.
    """
    from mlx_diffusiongemma.bench import soak
    from mlx_diffusiongemma.bench.machine import describe_machine
    from mlx_diffusiongemma.bench.process import WorkerProcess

    least = 2 * soak.COMPARED
    if requests < least or requests % len(soak.MIX):
        raise ConfigError(
            f"--requests is {requests}", hint=f"a multiple of {len(soak.MIX)}, {least} or more"
        )
    if out and not out.parent.is_dir():
        raise ConfigError(f"`{out.parent}` is not a folder", hint="make it first")
    folder = find_model(model, revision)
    module = f"{soak.__name__}_worker"
    start = partial(WorkerProcess, [sys.executable, "-m", module, str(folder)])
    with ExitStack() as stack, counting(requests, "requests") as progress:
        old = stack.enter_context(start())
        hello, machine = old.hello, describe_machine()
        again = (lambda: stack.enter_context(start())) if fresh else None
        result = soak.run_soak(old, again, requests, progress=progress)
    found = soak.bars(result, on_cpu=hello["device"] == "cpu")
    write_stdout("".join(f"{line}\n" for line in soak.lines(found)))
    note(
        f"{requests} requests to {model} on {machine}; MLX {hello['mlx']} on the {hello['device']}"
    )
    if out:
        numbers = {
            "model": model,
            "machine": machine,
            "worker": hello,
            "bars": [asdict(bar) | {"met": bar.met} for bar in found],
            **asdict(result),
        }
        out.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    if not soak.holds(found):
        raise typer.Exit(1)
