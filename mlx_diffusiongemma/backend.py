"""The check that MLX can compute here: on Linux its back-end is a package of its own."""

import importlib.util
import sys
from pathlib import Path

NO_BACKEND = (
    "MLX has no back-end here. Install exactly one of the extras cpu, cuda12, cuda13, for example: "
    "pip install 'mlx-diffusiongemma[cpu]'"
)


def has_backend() -> bool:
    """True when `mlx.core` is there to be imported; it is not imported."""
    try:
        return importlib.util.find_spec("mlx.core") is not None
    except ModuleNotFoundError:  # no `mlx` at all
        return False


def require_backend() -> None:
    """ImportError with one line on what to install. The command says it without a traceback."""
    command = sys.argv[:1] == ["-m"] or (sys.argv and Path(sys.argv[0]).stem == "dgemma-mlx")
    if not has_backend() and not command:
        raise ImportError(NO_BACKEND)
