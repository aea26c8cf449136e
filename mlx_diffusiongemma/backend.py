"""The check that MLX can compute here: on Linux its back-end is a package of its own."""

import importlib
import importlib.util
import sys
from pathlib import Path

NO_BACKEND = (
    "MLX has no back-end here. Install exactly one of the extras cpu, cuda12, cuda13, for example: "
    "pip install 'mlx-diffusiongemma[cpu]', or in a clone: pip install '.[cpu]'"
)


def has_backend() -> bool:
    """True when `mlx.core` can be imported; it is not imported in an ordinary installation.

    `pip install mlx` on Linux brings `mlx.core` without the library it needs: that lies beside it
    when a back-end is installed. In another layout only the import itself can tell.
    """
    try:
        spec = importlib.util.find_spec("mlx.core")
        if spec is None:
            return False
        if not spec.origin or not list(Path(spec.origin).parent.glob("lib/libmlx.*")):
            importlib.import_module("mlx.core")
    except ImportError:
        return False
    return True


def require_backend() -> None:
    """ImportError with one line on what to install. The command says it without a traceback."""
    command = sys.argv[:1] == ["-m"] or (sys.argv and Path(sys.argv[0]).stem == "dgemma-mlx")
    if not command and not has_backend():
        raise ImportError(NO_BACKEND)
