"""The kernels on NVIDIA GPUs: the same bodies, compiled as CUDA after metal/cuda_dialect.h.

What the two languages write differently and no macro can express is rewritten here: threadgroup
variables, the attributes of a thread, scalars as inputs, and grids that count threads. The products
with experts stay out: their bodies need simdgroup matrices, which CUDA does not have.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.kernels import launches
from mlx_diffusiongemma.kernels.launches import Kernel, Launch

GRID = "launch_grid"  # the input that holds a grid's threads
_DIALECT = "cuda_dialect.h"
_SCALAR = "_input"  # behind the name of a scalar: CUDA gets its address
_VARIABLE = re.compile(r"\bthreadgroup(\s+\w+\s+\w+\s*\[)")
# CUDA's pointers have no address space. No macros: `__device__` is made of the word `device`.
_SPACE = re.compile(r"\b(?:device|constant|threadgroup|thread)\s+(?=(?:const\s+)?\w+\s*[*&(])")
# What a body may ask about its thread; `{grid}` stands for the input GRID.
_ATTRIBUTES = {
    "thread_position_in_grid": "uint3 {name} = metal::{name}({grid})",
    "threads_per_grid": "uint3 {name} = make_uint3({grid}[0], {grid}[1], {grid}[2])",
    "threadgroup_position_in_grid": "uint3 {name} = blockIdx",
    "thread_index_in_threadgroup": "uint {name} = metal::thread_index_in_threadgroup()",
    "thread_index_in_simdgroup": "uint {name} = metal::thread_index_in_threadgroup() % 32",
    "simdgroup_index_in_threadgroup": "uint {name} = metal::thread_index_in_threadgroup() / 32",
}
_OF_THREADS = ("thread_position_in_grid", "threads_per_grid")


@dataclass(frozen=True)
class Source:
    """What `mx.fast.cuda_kernel` is given."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str


def launch_on_cuda(launch: Launch) -> Sequence[mx.array]:
    """The outputs of one launch on an NVIDIA GPU."""
    outputs: Sequence[mx.array] = _cuda_kernel(source(launch))(**arguments(launch))
    return outputs


def source(launch: Launch) -> Source:
    """The source for a launch. Its name tells all that it depends on besides the template.

    MLX finds a kernel that it has compiled by its name and template alone, and a kernel for float16
    must not be taken for bfloat16.
    """
    dtypes = [array.dtype for array in launch.inputs] + list(launch.output_dtypes)
    scalars = tuple(array.ndim == 0 for array in launch.inputs)
    return _source(launch.kernel, scalars, tuple(map(str, dtypes)))


def arguments(launch: Launch) -> dict[str, Any]:
    """As the keyword arguments of the object that `mx.fast.cuda_kernel` returns."""
    given = launch.arguments()
    block = tuple(map(min, launch.threadgroup, launch.grid))
    across, down, deep = (-(-n // each) for n, each in zip(launch.grid, block, strict=True))
    if _counts_threads(launch.kernel):
        given["inputs"].append(mx.array(launch.grid, mx.int32))
        given["grid"] = (across * down * deep * block[0], block[1], block[2])
    elif any(n % each for n, each in zip(launch.grid, block, strict=True)):
        raise ValueError(f"the grid {launch.grid} of {launch.kernel.name} is not of whole blocks")
    given["threadgroup"] = block
    return given


@cache
def _counts_threads(kernel: Kernel) -> bool:
    """Whether a body asks about threads of the grid. Then blocks at its end may be partly outside,
    and their threads return at once, which no barrier of the threadgroup would survive."""
    _, body = launches.source(kernel)
    counts = any(_names(body, attribute) for attribute in _OF_THREADS)
    if counts and "threadgroup_barrier(" in body:
        raise ValueError(f"{kernel.name} has barriers: it must count threadgroups, not threads")
    return counts


@cache
def _source(kernel: Kernel, scalars: tuple[bool, ...], dtypes: tuple[str, ...]) -> Source:
    header, body = map(_in_cuda, launches.source(kernel))
    dialect = files("mlx_diffusiongemma.metal").joinpath(_DIALECT).read_text()
    inputs = [
        name + _SCALAR if scalar else name
        for name, scalar in zip(kernel.inputs, scalars, strict=True)
    ]
    lines = [
        f"const {form.format(name=name, grid=GRID)};"
        for name, form in _ATTRIBUTES.items()
        if _names(body, name) or (name == _OF_THREADS[0] and _counts_threads(kernel))
    ]
    if _counts_threads(kernel):
        inputs.append(GRID)
        lines.append(f"if (metal::is_outside({_OF_THREADS[0]}, {GRID})) return;")
    lines += [
        f"const auto {name} = *{name}{_SCALAR};"
        for name, scalar in zip(kernel.inputs, scalars, strict=True)
        if scalar
    ]
    whole = f'#line 1 "{_DIALECT}"\n{dialect}{header}', "\n".join(lines) + "\n" + body
    digest = hashlib.sha256("\0".join((*whole, *inputs, *dtypes)).encode()).hexdigest()
    return Source(f"{kernel.name}_{digest[:16]}", tuple(inputs), kernel.outputs, *whole)


def _in_cuda(text: str) -> str:
    """Threadgroup variables are shared; a pointer into them is like any other."""
    return _SPACE.sub("", _VARIABLE.sub(r"__shared__\1", text))


def _names(body: str, attribute: str) -> bool:
    return re.search(rf"\b{attribute}\b", body) is not None


@cache
def _cuda_kernel(source: Source) -> Any:
    """MLX's object for a source. Unlike one for Metal it can be made only where there is CUDA."""
    return mx.fast.cuda_kernel(
        name=source.name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        header=source.header,
        source=source.body,
    )
