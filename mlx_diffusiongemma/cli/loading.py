"""Finding and opening a model for a command, with a download bar when it has to be fetched."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.backend import find_problem
from mlx_diffusiongemma.cli.console import is_live, stderr
from mlx_diffusiongemma.cli.interrupts import ending_at_once
from mlx_diffusiongemma.errors import ConfigError

if TYPE_CHECKING:
    from mlx_diffusiongemma.runtime import Runtime


def check_backend() -> None:
    """Raise ConfigError when MLX cannot compute on this machine."""
    if problem := find_problem():
        raise ConfigError(problem.what, hint=problem.advice)


def find_model(name: str, revision: str | None) -> Path:
    """The folder of a model; what a download will cost is said before it starts."""
    from mlx_diffusiongemma.cli.download import DownloadDisplay

    check_backend()
    with DownloadDisplay() as display:
        return hub.resolve(
            name, revision=revision, progress=display.progress, on_plan=display.on_plan
        )


def open_runtime(
    model: str | None, *, revision: str | None, dtype: str | None, force: bool, measure: bool = True
) -> "Runtime":
    """Load `model`, or the default one. See `runtime.load`."""
    name = hub.DEFAULT_MODEL if model is None else model
    folder = find_model(name, revision)
    spinner = stderr.status(f"loading {name}") if is_live() else contextlib.nullcontext()
    with spinner, ending_at_once():
        from mlx_diffusiongemma import runtime  # seconds: transformers and MLX

        return runtime.load(folder, dtype=dtype, force=force, measure=measure)
