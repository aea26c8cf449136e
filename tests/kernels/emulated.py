"""Kernels of the package run through the emulator, or on a Metal GPU where there is one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import emulator
import mlx.core as mx
import pytest

from mlx_diffusiongemma.kernels import cuda, dispatch
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch

# Every way to run a kernel: checked in three orders, and the two that only compute.
CHECKED = [("checked", schedule) for schedule in emulator.SCHEDULES]
RUNS = [*CHECKED, ("fast", "in order"), ("contracted", "in order")]
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
each_run = pytest.mark.parametrize(("mode", "schedule"), RUNS)
# Every dtype in every order, and float32 as compiled for speed.
each_dtype_and_run = pytest.mark.parametrize(
    ("dtype", "mode", "schedule"),
    [(dtype, *how) for dtype in DTYPES for how in CHECKED]
    + [(mx.float32, *how) for how in RUNS if how not in CHECKED],
    ids=str,
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def run(
    launch: Launch,
    mode: str = "checked",
    schedule: str = "in order",
    seed: int = 0,
    kernel: Any = None,
) -> Sequence[mx.array]:
    """The outputs of a launch, of another object of the same kernel if one is given.

    With a Metal GPU it runs there; mode and schedule then mean nothing.
    """
    kernel = kernel or dispatch.metal_kernel(launch.kernel)
    if mx.metal.is_available():
        outputs: Sequence[mx.array] = kernel(**launch.arguments())
        return outputs
    return emulator.run(kernel, mode=mode, schedule=schedule, seed=seed, **launch.arguments())


def run_as_cuda(
    launch: Launch, mode: str = "checked", schedule: str = "in order", seed: int = 0
) -> Sequence[mx.array]:
    """The outputs of what would be launched on an NVIDIA GPU, on the CPU."""
    source, arguments = cuda.source(launch), cuda.arguments(launch)
    return emulator.cuda.run(source, arguments, mode, schedule, seed)


def forced(mode: str = "checked", schedule: str = "in order") -> AbstractContextManager[None]:
    """Whatever the package computes with kernels goes through the emulator."""
    return dispatch.forced(lambda launch: run(launch, mode, schedule))


def changed(kernel: Kernel, old: str, new: str, occurrence: int = 1) -> Any:
    """MLX's object for `kernel` with one piece of its source replaced: a mutant."""
    source = "\0".join(dispatch.source(kernel))
    position = -1
    for _ in range(occurrence):
        position = source.index(old, position + 1)
    header, body = (source[:position] + new + source[position + len(old) :]).split("\0")
    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        header=header,
        source=body,
    )
