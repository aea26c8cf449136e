"""The kernels at the released model's sizes against plain MLX: on a Mac's GPU, and emulated.

What runs on a Mac has the marker `metal`. The emulator runs the same bodies once.
"""

import emulated
import mlx.core as mx
import numpy as np
import pytest
from operations import CASES, WITH_KERNELS, computed
from places import computing_on, on_the_cpu, relative_error
from tolerances import LONG_SUMS, ON_ANOTHER_DEVICE

from mlx_diffusiongemma.device_report import describe_device
from mlx_diffusiongemma.kernels import dispatch

PLACES = [
    pytest.param("emulator", mx.bfloat16, marks=pytest.mark.emulator, id="emulator"),
    *(
        pytest.param("metal", dtype, marks=pytest.mark.metal, id=f"metal-{dtype}")
        for dtype in emulated.DTYPES
    ),
]


@pytest.mark.parametrize(("place", "dtype"), PLACES)
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_an_operation_computes_what_plain_mlx_does_on_the_cpu(name, place, dtype):
    calls = CASES[name](dtype)
    want = on_the_cpu(lambda: computed(calls, wide=True))
    launched = []

    def launch(each):
        launched.append(each.kernel.name)
        return emulated.run(each, "fast")

    with computing_on(mx.gpu if place == "metal" else mx.cpu), dispatch.forced(launch):
        got = computed(calls)
        mx.eval(*got)
    assert launched
    for one, other in zip(got, want, strict=True):
        if other.dtype != np.float32:
            np.testing.assert_array_equal(np.array(one), other)
            continue
        result = np.array(one.astype(mx.float32))
        if not np.all(np.abs(result - other) <= LONG_SUMS.get(name, 0.0)):
            tolerance = ON_ANOTHER_DEVICE[str(dtype).removeprefix("mlx.core.")]
            assert relative_error(result, other) <= tolerance


@pytest.mark.metal
def test_no_kernel_fails_its_trial_on_this_mac():
    kernels = describe_device().kernels
    assert kernels.failed == () and "geglu" in kernels.used
