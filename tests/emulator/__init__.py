"""Runs and checks MLX's Metal kernels on a Linux CPU, with clang.

    kernel = mx.fast.metal_kernel(...)                  # the production object, untouched
    outputs = emulator.run(kernel, inputs=..., grid=..., ...)   # MetalError where Metal forbids it
    emulator.type_errors(kernel, inputs=..., grid=..., ...)     # [] or what a Mac would not compile

MLX says what it would send to Metal (capture); that text becomes C++ (translate), is compiled
against a small `metal_stdlib` (include/) and runs on fibers that check every access (native/).
`emulator.cuda` does so with kernels for NVIDIA GPUs.
docs/kernels.md says what this proves and what it cannot.
"""

from emulator import cuda
from emulator.compiler import MODES, CompileError, MetalError, missing
from emulator.launch import SCHEDULES, run
from emulator.typecheck import type_errors

__all__ = [
    "MODES",
    "SCHEDULES",
    "CompileError",
    "MetalError",
    "cuda",
    "missing",
    "run",
    "type_errors",
]
