"""What a kernel is and what a launch of one needs: names, sources, arrays, sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import mlx.core as mx

_MARKER = "// @body\n"


@dataclass(frozen=True)
class Kernel:
    """A file `metal/<name>.metal`: functions, the line `// @body`, and the body of the kernel.

    `functions` names other files whose functions the body calls; they have no body of their own.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: what MLX needs to know besides the source."""

    kernel: Kernel
    inputs: tuple[mx.array, ...]
    template: tuple[tuple[str, int | bool | mx.Dtype], ...]
    grid: tuple[int, int, int]  # threads
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]

    def arguments(self) -> dict[str, Any]:
        """As the keyword arguments of the object that `mx.fast.metal_kernel` returns."""
        return {
            "inputs": list(self.inputs),
            "template": list(self.template),
            "grid": self.grid,
            "threadgroup": self.threadgroup,
            "output_shapes": list(self.output_shapes),
            "output_dtypes": list(self.output_dtypes),
        }


def source(kernel: Kernel) -> tuple[str, str]:
    """Header and body; `#line` makes a compiler's messages name the files and their lines."""
    header = "".join(_part(name, _read(name)) for name in kernel.functions)
    own, marker, body = _read(kernel.name).partition(_MARKER)
    if not marker:
        raise ValueError(f"metal/{kernel.name}.metal has no line {_MARKER.strip()}")
    return header + _part(kernel.name, own), _part(kernel.name, body, own.count("\n") + 2)


def _read(name: str) -> str:
    return files("mlx_diffusiongemma.metal").joinpath(f"{name}.metal").read_text()


def _part(name: str, text: str, first_line: int = 1) -> str:
    return f'#line {first_line} "{name}.metal"\n{text}'


@cache
def metal_kernel(kernel: Kernel) -> Any:
    """MLX's object for `kernel`. It can be made anywhere, and called where there is Metal."""
    header, body = source(kernel)
    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        header=header,
        source=body,
    )


def launch_on_metal(launch: Launch) -> Sequence[mx.array]:
    """The outputs of one launch on a Metal GPU."""
    outputs: Sequence[mx.array] = metal_kernel(launch.kernel)(**launch.arguments())
    return outputs
