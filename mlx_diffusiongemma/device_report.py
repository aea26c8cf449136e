"""What computes here: device, MLX and its back-end, memory, dtypes, and which of our kernels.

For people, and to stand beside measurements: there is no name of a machine, a user or a path in it.
"""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import mlx.core as mx

from mlx_diffusiongemma import device, hub
from mlx_diffusiongemma.backend import back_ends
from mlx_diffusiongemma.first_use import build_two_steps
from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.mlx_build import Build, find_build
from mlx_diffusiongemma.runtime import load_model
from mlx_diffusiongemma.version import __version__

_HELD = "each was held against MLX's own operations before it was used"


@dataclass(frozen=True)
class KernelReport:
    """Our kernels in place of MLX's operations: those that run, those that failed, and why."""

    used: tuple[str, ...]
    failed: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class DeviceReport:
    """The device that MLX computes on by default.

    Attributes:
        kind, name, architecture: such as "cuda", "NVIDIA H200", "sm_90".
        versions: of Python, MLX and this package, and the packages that hold MLX's back-end.
        build: which build of MLX that is.
        total_bytes: memory of the device; of a CPU, and of a Mac, that of the machine.
        free_bytes: what no program uses; None where MLX does not say.
        usable_bytes: what a model may take.
        dtype: of activations where none is asked for: a name, or None for the checkpoint's own.
        dtype_reason: why.
        exact_float32: float32 products are as exact as that; otherwise a GPU that has TF32 may
            round their factors to 10 bits.
        kernels: which of our own run.
    """

    kind: Literal["metal", "cuda", "cpu"]
    name: str
    architecture: str
    versions: dict[str, str]
    back_ends: tuple[str, ...]
    build: Build
    total_bytes: int
    free_bytes: int | None
    usable_bytes: int
    dtype: str | None
    dtype_reason: str
    exact_float32: bool
    kernels: KernelReport


def describe_device() -> DeviceReport:
    """Ask MLX; on a GPU the kernels that the demo model meets have their trial."""
    info = mx.device_info()
    kind = _kind()
    dtype, reason = _dtype(kind)
    total = info.get("total_memory", info.get("memory_size", device.physical_memory()))
    free = info.get("free_memory")
    return DeviceReport(
        kind=kind,
        name=str(info.get("device_name", "unnamed")),
        architecture=str(info.get("architecture", platform.machine())),
        versions={
            "python": platform.python_version(),
            "mlx": version("mlx"),
            "mlx-diffusiongemma": __version__,
        },
        back_ends=back_ends(),
        build=find_build(),
        total_bytes=int(total),
        free_bytes=None if free is None else int(free),
        usable_bytes=device.available_memory(),
        dtype=dtype,
        dtype_reason=reason,
        exact_float32=kind == "cpu" or os.environ.get(device.TF32_SWITCH) == "0",
        kernels=_kernels(),
    )


def _kind() -> Literal["metal", "cuda", "cpu"]:
    if device.on_cpu():
        return "cpu"
    return "cuda" if mx.cuda.is_available() else "metal"


def _dtype(kind: str) -> tuple[str | None, str]:
    """See `device.compute_dtype`."""
    if kind == "cpu":
        return "float32", "MLX's CPU back-end is many times slower in half precision"
    if not device.has_bfloat16():
        return "float32", "this GPU does not calculate in bfloat16; a float16 checkpoint stays so"
    if device.emulates_bfloat16():
        return "float16", "this chip emulates bfloat16; bfloat16 if the activations do not fit"
    return None, "as the checkpoint says; the released one says bfloat16"


def _kernels() -> KernelReport:
    if not dispatch.has_kernels():
        return KernelReport((), (), "they are written for GPUs; MLX's own operations compute")
    if os.environ.get(dispatch.SWITCH) == "0":
        return KernelReport((), (), f"{dispatch.SWITCH}=0 switches them off")
    _try_demo()
    trials = dispatch.trials()
    return KernelReport(
        used=tuple(sorted(name for name, passed in trials.items() if passed)),
        failed=tuple(sorted(name for name, passed in trials.items() if not passed)),
        reason=_HELD if trials else "MLX's own operations were chosen",
    )


def _try_demo() -> None:
    """In what released models compute in here, and in float32."""
    for dtype in dict.fromkeys((_dtype(_kind())[0] or "bfloat16", "float32")):
        build_two_steps(load_model(hub.DEMO, dtype=dtype))
