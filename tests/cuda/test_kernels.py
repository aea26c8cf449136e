"""Our kernels, compiled as CUDA, against plain MLX: on the GPU, and in the emulator on the CPU."""

from collections.abc import Sequence

import emulated
import emulator
import mlx.core as mx
import pytest
from operations import CASES, WITH_KERNELS, computed
from places import Place, on_the_cpu
from test_operations import compare, each_dtype
from tolerances import LONG_SUMS

from mlx_diffusiongemma.kernels import cuda, dispatch
from mlx_diffusiongemma.kernels.dispatch import Launch


def launched_as_cuda(place: Place, launch: Launch) -> Sequence[mx.array]:
    if place.is_gpu:
        return cuda.launch_on_cuda(launch)
    return emulated.run_as_cuda(launch, "fast")


@each_dtype
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_a_kernel_computes_what_plain_mlx_does_on_the_cpu(place, name, dtype):
    if not place.is_gpu and (reason := emulator.missing()):
        pytest.skip(reason)
    launched = []

    def launch(each: Launch) -> Sequence[mx.array]:
        launched.append(each.kernel.name)
        return launched_as_cuda(place, each)

    calls = CASES[name](dtype)
    want = on_the_cpu(lambda: computed(calls, wide=True))
    with dispatch.forced(launch):
        got = place.outputs(lambda: computed(calls))
    assert launched
    compare(place, got, want, dtype, LONG_SUMS.get(name, 0.0))
