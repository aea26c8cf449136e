"""Where the body of a test computes: on the device under test, held against the CPU.

A body takes the fixture `place` and runs twice. On the GPU it has the marker `cuda`, and real
sizes. On the CPU it proves that the body itself works, with small sizes; `test_faults.py` shows
that it can fail.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

Outputs = list[np.ndarray]


@dataclass(frozen=True)
class Place:
    """A device under test.

    Attributes:
        measured: keeps a number by its name; `make test-cuda` writes them into its results.
    """

    device: mx.DeviceType
    measured: Callable[[str, float], None]

    @property
    def is_gpu(self) -> bool:
        """Whether sizes are those of the released model."""
        return self.device == mx.gpu

    @contextmanager
    def default(self) -> Iterator[None]:
        """Compute here."""
        with computing_on(self.device):
            yield

    def outputs(self, body: Callable[[], Any]) -> Outputs:
        """The arrays that `body` computes here, in float32 where they are floats."""
        with self.default():
            return _arrays(body())

    def dtypes(self) -> tuple[mx.Dtype, ...]:
        """What models compute in here; experts that are not packed allow the CPU float32 only."""
        return (mx.float32, mx.float16, mx.bfloat16) if self.is_gpu else (mx.float32,)


@contextmanager
def computing_on(device: mx.DeviceType) -> Iterator[None]:
    """Make `device` MLX's default for a while."""
    before = mx.default_device()
    mx.set_default_device(device)
    try:
        yield
    finally:
        mx.set_default_device(before)


def on_the_cpu(body: Callable[[], Any]) -> Outputs:
    """What `body` computes on the CPU."""
    with computing_on(mx.cpu):
        return _arrays(body())


def _arrays(computed: Any) -> Outputs:
    named = tree_flatten(list(computed) if isinstance(computed, tuple) else [computed])
    arrays = [array for _, array in named]
    floats = [mx.issubdtype(array.dtype, mx.floating) for array in arrays]
    cast = [
        array.astype(mx.float32) if is_float else array
        for array, is_float in zip(arrays, floats, strict=True)
    ]
    mx.eval(cast)
    return [np.array(array) for array in cast]


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference as a share of the largest number; infinite where one is not finite."""
    if got.shape != want.shape or not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    largest = max(float(np.abs(want[finite]).max()), 1e-30)
    return float(np.abs(got[finite].astype(np.float64) - want[finite]).max()) / largest
