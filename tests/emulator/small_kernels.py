"""Small kernels for the emulator's own tests: one input `x`, one output `out`, unless said."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx


def kernel(
    source: str,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("out",),
    header: str = "",
    row_contiguous: bool = True,
    atomic_outputs: bool = False,
) -> Any:
    return mx.fast.metal_kernel(
        name="small",
        input_names=list(inputs),
        output_names=list(outputs),
        source=source,
        header=header,
        ensure_row_contiguous=row_contiguous,
        atomic_outputs=atomic_outputs,
    )


def call(
    threads: int,
    *inputs: Any,
    group: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
    dtypes: Sequence[mx.Dtype] = (mx.float32,),
    template: Sequence[tuple[str, Any]] | None = None,
) -> dict[str, Any]:
    """Arguments of a launch in one dimension; by default one threadgroup, one output per thread."""
    return {
        "inputs": list(inputs) or [mx.arange(threads).astype(mx.float32)],
        "grid": (threads, 1, 1),
        "threadgroup": (group or threads, 1, 1),
        "output_shapes": shapes or [(threads,)],
        "output_dtypes": list(dtypes),
        "template": template,
    }
