"""Runs a kernel that MLX would compile for an NVIDIA GPU, on the CPU and under the same checker.

    outputs = cuda.run(source, arguments, mode="checked", schedule="in order")

`source` has the name, inputs, outputs, header and body that `mx.fast.cuda_kernel` is given, and
`arguments` are those of the object that it returns.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from emulator.compiler import build
from emulator.cuda_source import HEADER, full_name, generated, parameters
from emulator.launch import flat_bytes, run_compiled
from emulator.translate import blank_comments, threadgroup_variables

_PREAMBLE = '#include "emulator/cuda.h"\n'
_MOST_DIMENSIONS = 10  # MLX passes shapes by value, in arrays of this length
_LAUNCHER = """
#line 1 "launcher"
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) char _end[];
static EMU_UNCHECKED void run_thread(EmuLaunch* launch, unsigned) {{
  void** buffers = launch->buffers;
  auto* called = &mlx::core::cu::{function};
  asm volatile("" : "+r"(called));  // not inlined: this function is not instrumented
  called({arguments});
}}
extern "C" int emu_launch(EmuLaunch* launch) {{
  emu_now = launch;
  launch->run_thread = run_thread;
  launch->image_begin = __ehdr_start;
  launch->image_end = _end;
  return emu_run(launch);
}}
"""


def run(
    source: Any,
    arguments: dict[str, Any],
    mode: str = "checked",
    schedule: str = "in order",
    seed: int = 0,
) -> list[mx.array]:
    """The outputs; MetalError says what went wrong, CompileError what is not even C++."""
    inputs = _with_facts(source, arguments["inputs"])
    shapes, dtypes = arguments["output_shapes"], arguments["output_dtypes"]
    grid, block = arguments["grid"], arguments["threadgroup"]
    return run_compiled(
        build(_as_cpp(source, arguments), mode, _PREAMBLE),
        inputs,
        list(zip(source.outputs, shapes, dtypes, strict=True)),
        # Blocks are whole: threads beyond the grid exist.
        grid=tuple(-(-n // each) * each for n, each in zip(grid, block, strict=True)),
        threadgroup=block,
        mode=mode,
        schedule=schedule,
        seed=seed,
    )


def _with_facts(source: Any, inputs: list[mx.array]) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """Each input, and behind it the shape if the body asks for it."""
    found = []
    for name, array in zip(source.inputs, inputs, strict=True):
        found.append((name, flat_bytes(array)))
        if array.ndim and f"{name}_shape" in source.body:
            shape = np.zeros(_MOST_DIMENSIONS, np.int32)
            shape[: array.ndim] = array.shape
            found.append((f"{name}_shape", shape))
    return found


def _as_cpp(source: Any, arguments: dict[str, Any]) -> str:
    text = blank_comments(generated(source, arguments).removeprefix(HEADER))
    # Shared variables live in the emulator's arena, as those of a threadgroup.
    text = threadgroup_variables(text.replace("__shared__ ", "threadgroup "))
    listed = parameters(source, arguments["inputs"], arguments["output_dtypes"])
    values = ", ".join(_argument(kind, number) for number, (kind, _) in enumerate(listed))
    return text + _LAUNCHER.format(function=full_name(source, arguments), arguments=values)


def _argument(kind: str, number: int) -> str:
    if kind.endswith("*"):
        return f"({kind})buffers[{number}]"
    return f"*(mlx::core::cu::{kind.split()[-1]}*)buffers[{number}]"
