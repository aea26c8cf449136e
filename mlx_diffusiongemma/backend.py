"""The check that MLX can compute here: on Linux its back-end is a package of its own."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

_BACK_END = re.compile(r"(mlx_(?:cpu|metal|cuda)[\w]*)-.+\.dist-info")
_EXTRAS = "exactly one of the extras cpu, cuda12, cuda13"
_EXAMPLE = "pip install 'mlx-diffusiongemma[{}]', or in a clone: pip install '.[{}]'"
_CUDA_ADVICE = (
    "`nvidia-smi` shows the driver, which brings libcuda and has to be new enough, and the GPUs; "
    "CUDA_VISIBLE_DEVICES can hide them; `mlx[cuda13]` brings the other libraries; without an "
    "NVIDIA GPU use the extra cpu instead, in a new environment"
)


class Problem(NamedTuple):
    """Why MLX cannot compute here, and what to do about it; a line each."""

    what: str
    advice: str


NO_BACKEND = Problem(
    "MLX has no back-end here", f"Install {_EXTRAS}, for example: {_EXAMPLE.format('cpu', 'cpu')}"
)


def find_problem() -> Problem | None:
    """What keeps MLX from computing here; None when nothing does.

    `pip install mlx` on Linux brings `mlx.core` without the library it needs: that lies beside it
    when a back-end is installed. Two of them overwrite each other's files, and whichever came last
    computes. `mlx.core` is imported only where nothing else can tell: in another layout, and for
    CUDA, whose libraries and driver may be missing.
    """
    try:
        spec = importlib.util.find_spec("mlx.core")
    except ImportError:
        spec = None
    if spec is None:
        return NO_BACKEND
    folder = Path(spec.origin).parent if spec.origin else None
    installed = _back_ends(folder)
    if len(installed) > 1:
        return Problem(
            f"MLX has {len(installed)} back-ends here that overwrite each other: "
            f"{' and '.join(installed)}",
            f"pip uninstall -y mlx {' '.join(installed)}; then install {_EXTRAS}: "
            f"{_EXAMPLE.format('cuda13', 'cuda13')}",
        )
    is_whole = folder is not None and any(folder.glob("lib/libmlx.*"))
    is_cuda = any("cuda" in name for name in installed)
    return _import_problem(is_cuda) if is_cuda or not is_whole else None


def back_ends() -> tuple[str, ...]:
    """Names of the installed packages that hold MLX's back-end: one, or in another layout none."""
    spec = importlib.util.find_spec("mlx.core")
    return _back_ends(Path(spec.origin).parent if spec and spec.origin else None)


def _back_ends(folder: Path | None) -> tuple[str, ...]:
    """By what lies beside MLX's own folder; importlib.metadata would cost 20 ms of every --help."""
    if folder is None:
        return ()
    found = (_BACK_END.fullmatch(path.name) for path in folder.parent.glob("mlx_*.dist-info"))
    return tuple(sorted({match[1].replace("_", "-") for match in found if match}))


def _import_problem(is_cuda: bool) -> Problem | None:
    try:
        mx = importlib.import_module("mlx.core")
    except ImportError as error:
        if not is_cuda:
            return NO_BACKEND
        return Problem(f"MLX's CUDA back-end does not load: {error}", _CUDA_ADVICE)
    if is_cuda and mx.default_device() == mx.gpu and not mx.device_count(mx.gpu):
        return Problem("MLX's CUDA back-end finds no GPU", _CUDA_ADVICE)
    return None


def require_backend() -> None:
    """ImportError with one line on what to install. The command says it without a traceback."""
    command = sys.argv[:1] == ["-m"] or (sys.argv and Path(sys.argv[0]).stem == "dgemma-mlx")
    if not command and (problem := find_problem()):
        raise ImportError(". ".join(problem))
