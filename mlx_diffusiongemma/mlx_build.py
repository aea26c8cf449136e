"""Which build of MLX computes here: its version, the wheel it came in, and what its library holds.

On an M5 the speed of long prompts, and which of MLX's faults one meets, depend on it.
"""

import importlib.util
import mmap
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

ARCHITECTURE = "MLX_METAL_GPU_ARCH"  # MLX's environment variable: take the GPU for this one
_TAG = re.compile(r"^Tag: [^-]+-[^-]+-(\S+)$", re.MULTILINE)
_NAX = b"_nax"  # in the names of kernels for the neural accelerators of an M5


class Build(NamedTuple):
    """What can be known without computing.

    Attributes:
        mlx: its version.
        wheels: platforms for which the packages with its back-end were built, such as
            "macosx_26_0_arm64"; none where it did not come in a wheel.
        has_nax: whether its Metal library names kernels for neural accelerators; None where there
            is no such library. Whether they run depends on chip and system too.
        architecture: what MLX is told to take the GPU for; None where it asks the GPU.
    """

    mlx: str
    wheels: tuple[str, ...]
    has_nax: bool | None
    architecture: str | None

    def in_words(self) -> str:
        """For people, on one line."""
        parts = [*self.wheels]
        if self.has_nax is not None:
            parts.append(f"with{'' if self.has_nax else 'out'} NAX kernels")
        if self.architecture:
            parts.append(f"{ARCHITECTURE}={self.architecture}")
        return f"mlx {self.mlx}" + (f" ({', '.join(parts)})" if parts else "")


def find_build() -> Build:
    """The build that Python would import."""
    spec = importlib.util.find_spec("mlx.core")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return build_in(folder)


def build_in(folder: Path | None) -> Build:
    """The build whose `mlx.core` lies in a folder; None where nobody knows."""
    try:
        number = version("mlx")
    except PackageNotFoundError:
        number = "of unknown version"
    told = os.environ.get(ARCHITECTURE) or None
    if folder is None:
        return Build(number, (), None, told)
    library = folder / "lib" / "mlx.metallib"
    return Build(number, _wheels(folder.parent), _names_nax(library), told)


def _wheels(folder: Path) -> tuple[str, ...]:
    found = set()
    for path in folder.glob("mlx_*.dist-info/WHEEL"):
        if path.parent.name.startswith(("mlx_cpu-", "mlx_metal-", "mlx_cuda")):
            found |= set(_TAG.findall(path.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def _names_nax(library: Path) -> bool | None:
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as all,
        ):
            return all.find(_NAX) >= 0
    except (OSError, ValueError):  # no such file, or an empty one
        return None
