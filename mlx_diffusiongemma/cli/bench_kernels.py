"""`dgemma-mlx bench kernels`: our kernels against MLX's operations at the released sizes."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from mlx_diffusiongemma.cli.console import note, write_stdout
from mlx_diffusiongemma.cli.loading import check_backend
from mlx_diffusiongemma.errors import ConfigError


def kernels_command(
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Repetitions of each candidate.")
    ] = 40,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all numbers as JSON.")
    ] = None,
) -> None:
    """Time each of our kernels against MLX's own operation, as a step of the released model does.

    Where there is no GPU one line says that there is nothing to time, and the exit code is 0.
    """
    if out and not out.parent.is_dir():
        raise ConfigError(f"`{out.parent}` is not a folder", hint="make it first")
    check_backend()

    from mlx_diffusiongemma.bench import kernel_times
    from mlx_diffusiongemma.kernels import dispatch, tuning

    if not dispatch.has_kernels():
        note("there are no kernels to time: this machine computes without a GPU")
        return
    sites = kernel_times.released_sites()
    candidates = {site.name: tuning.candidates_of(site) for site in sites}
    found = kernel_times.report(candidates, rounds=rounds, clock=time.perf_counter)
    write_stdout("".join(f"{line}\n" for line in kernel_times.table(found["sites"])))
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
