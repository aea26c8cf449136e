"""The source that MLX generates around the body of a kernel for CUDA, and the names of its types.

MLX's object for one can be made only where there is CUDA, so the text cannot be asked for as that
for Metal can. Written after what `mx.fast.cuda_kernel` prints with `verbose=True`.
"""

import re
from typing import Any

import mlx.core as mx

_TYPES = {
    mx.float32: "float",
    mx.float16: "__half",
    mx.bfloat16: "__nv_bfloat16",
    mx.uint32: "uint32_t",
    mx.int32: "int32_t",
    mx.bool_: "bool",
}
_FACTS = {"shape": "Shape", "strides": "Strides", "ndim": "int"}
HEADER = """
#include "mlx/backend/cuda/device/utils.cuh"
#include <cooperative_groups.h>
"""


def parameters(source: Any, inputs: list[mx.array], outputs: list[mx.Dtype]) -> list[tuple]:
    """Type and name of each parameter; `source` has `inputs`, `outputs` and `body`."""
    found = []
    for name, array in zip(source.inputs, inputs, strict=True):
        found.append((f"const {_TYPES[array.dtype]}*", name))
        found += [
            (f"const __grid_constant__ {kind}", f"{name}_{fact}")
            for fact, kind in _FACTS.items()
            if array.ndim and f"{name}_{fact}" in source.body
        ]
    return found + [
        (f"{_TYPES[dtype]}*", name) for name, dtype in zip(source.outputs, outputs, strict=True)
    ]


def generated(source: Any, arguments: dict[str, Any]) -> str:
    """The whole of it; `arguments` are those of MLX's object."""
    listed = parameters(source, arguments["inputs"], arguments["output_dtypes"])
    constants = "".join(_constant(name, value) for name, value in arguments["template"])
    return (
        f"{HEADER}{source.header}\n"
        "namespace mlx::core::cu {\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {full_name(source, arguments)}(\n"
        + ",\n".join(f"    {kind} {name}" for kind, name in listed)
        + f") {{\n{constants}\n{source.body}\n}}\n\n}}\n"
    )


def full_name(source: Any, arguments: dict[str, Any]) -> str:
    """The name under which MLX finds a kernel again: nothing of the arrays is in it."""
    words = [f"_{_word(value)}" for _, value in arguments["template"]]
    return f"custom_kernel_{source.name}{''.join(words)}"


def _constant(name: str, value: int | bool | mx.Dtype) -> str:
    if isinstance(value, mx.Dtype):
        return f"  using {name} = {_TYPES[value]};\n"
    kind = "bool" if isinstance(value, bool) else "int"
    return f"  constexpr {kind} {name} = {str(value).lower()};\n"


def _word(value: int | bool | mx.Dtype) -> str:
    if isinstance(value, mx.Dtype):
        return re.sub(r"\W", "_", _TYPES[value])
    return str(value).lower()[:1] if isinstance(value, bool) else str(value)
