"""Opening a model for a command, with a download bar when it has to be fetched first."""

import contextlib
from typing import TYPE_CHECKING

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.backend import NO_BACKEND, has_backend
from mlx_diffusiongemma.cli.console import is_live, stderr
from mlx_diffusiongemma.errors import ConfigError

if TYPE_CHECKING:
    from mlx_diffusiongemma.runtime import Runtime


def open_runtime(
    model: str | None, *, revision: str | None, dtype: str | None, force: bool
) -> "Runtime":
    """Load `model`, or the default one; what a download will cost is said before it starts."""
    from mlx_diffusiongemma.cli.download import DownloadDisplay

    if not has_backend():
        problem, _, advice = NO_BACKEND.partition(". ")
        raise ConfigError(problem, hint=advice)
    name = model or hub.DEFAULT_MODEL
    with DownloadDisplay() as display:
        folder = hub.resolve(
            name, revision=revision, progress=display.progress, on_plan=display.on_plan
        )
    with stderr.status(f"loading {name}") if is_live() else contextlib.nullcontext():
        from mlx_diffusiongemma import runtime  # seconds: transformers and MLX

        return runtime.load(folder, dtype=dtype, force=force)
