"""What MLX would send to Metal for one call of a kernel: the source, and how it is launched.

`mx.export_function` traces a `metal_kernel` on any machine and reports the arguments of the
primitive, the whole generated source among them. Nothing of MLX's signature rules is repeated here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

MAX_THREADS = 1024
MAX_BUFFERS = 31


@dataclass(frozen=True)
class Call:
    """One call as MLX prepares it."""

    name: str
    source: str  # without MLX's preamble
    inputs: list[mx.array]
    grid: tuple[int, int, int]  # threads
    threadgroup: tuple[int, int, int]
    # For each input, whether the source asks for its shape, strides and number of dimensions.
    asks: list[tuple[bool, bool, bool]]
    row_contiguous: bool  # whether MLX copies inputs that are not


def capture(kernel: Any, *, inputs: Sequence[Any], **launch: Any) -> Call:
    """The call of `kernel` with the arguments that it takes itself."""
    arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
    seen: list[dict[str, Any]] = []
    mx.export_function(seen.append, lambda *a: kernel(inputs=list(a), **launch), *arrays)
    (primitive,) = [entry for entry in seen if entry.get("name") == "CustomKernel"]
    name, source, *rest = primitive["arguments"]
    grid, threadgroup = tuple(rest[0:3]), tuple(rest[3:6])
    return Call(name, source, arrays, grid, threadgroup, rest[6], rest[7])
