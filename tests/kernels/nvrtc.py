"""What NVRTC, the compiler that MLX calls on a machine with an NVIDIA GPU, says to a kernel.

It comes as a package of its own and needs no GPU. MLX's header is not in the package that these
tests run with. What the kernels need of it stands below, twice: with the headers that MLX includes,
and without those of them that take NVRTC seconds each time.
"""

import ctypes
import site
from functools import cache
from pathlib import Path

_LIBRARY = "libnvrtc.so.13"
_MLX, _GROUPS = "mlx/backend/cuda/device/utils.cuh", "cooperative_groups.h"
_WHOLE = {
    _MLX: """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/array>
#include <cuda/std/limits>
#include <cuda/std/tuple>
namespace mlx::core::cu {
using Shape = cuda::std::array<int, 10>;
using Strides = cuda::std::array<long long, 10>;
}
"""
}
_LIGHT = {
    _MLX: """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using uint32_t = unsigned int;
using int32_t = int;
namespace mlx::core::cu {
template <typename T> struct Ten {
  T values[10];
  __device__ T operator[](int i) const { return values[i]; }
};
using Shape = Ten<int>;
using Strides = Ten<long long>;
}
""",
    _GROUPS: "namespace cooperative_groups {}\n",
}


@cache
def _folder() -> Path | None:
    """Where the packages of CUDA 13 put everything."""
    folders = [Path(folder) / "nvidia" / "cu13" for folder in site.getsitepackages()]
    return next((folder for folder in folders if folder.is_dir()), None)


def _include_paths(folder: Path) -> list[Path]:
    return [folder / "include", folder / "include" / "cccl"]


def missing() -> str | None:
    """Why nothing can be compiled here; None when it can."""
    folder = _folder()
    if folder is None or not (folder / "lib" / _LIBRARY).is_file():
        return "NVRTC is not installed: on Linux the extra `dev` brings nvidia-cuda-nvrtc"
    for header in ("cuda_fp16.h", _GROUPS, "cuda/std/array", "crt/host_defines.h"):
        if not any((path / header).is_file() for path in _include_paths(folder)):
            return f"NVRTC is installed, CUDA's header {header} is not: the extra `dev` brings it"
    return None


def errors(text: str, architecture: str, *, whole: bool = False) -> str:
    """What the compiler says against a source as MLX generates it; nothing if it is fine."""
    folder = _folder()
    assert folder is not None, missing()
    nvrtc, program = ctypes.CDLL(str(folder / "lib" / _LIBRARY)), ctypes.c_void_p()
    given = _WHOLE if whole else _LIGHT
    headers = _strings([*given.values()]), _strings([*given])
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernel.cu", len(given), *headers
    )
    assert made == 0, f"nvrtcCreateProgram ends with code {made}"
    options = [f"--gpu-architecture={architecture}"]
    options += [f"--include-path={path}" for path in _include_paths(folder)]
    code = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    return said or f"NVRTC ends with code {code}" if code else ""


def _strings(values: list[str]) -> ctypes.Array:
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])
