"""The one decision between our kernels and their plain-MLX twin.

An operation has a twin, which defines it, and a function that computes the same by launching
kernels. `uses_kernels` says which of the two runs: on a Metal device the kernels, unless the twin
was chosen there; on an NVIDIA GPU the kernels where they were chosen; neither where they are
switched off or have failed their trial. On a CPU the twin.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.kernels import choices
from mlx_diffusiongemma.kernels.choices import CUSTOM, STOCK
from mlx_diffusiongemma.kernels.cuda import launch_on_cuda

# Whoever writes an operation needs these beside `uses_kernels`.
from mlx_diffusiongemma.kernels.launches import Kernel as Kernel
from mlx_diffusiongemma.kernels.launches import Launch as Launch
from mlx_diffusiongemma.kernels.launches import launch_on_metal
from mlx_diffusiongemma.kernels.launches import metal_kernel as metal_kernel
from mlx_diffusiongemma.kernels.launches import source as source

logger = logging.getLogger(__name__)

SWITCH = "DGEMMA_METAL_KERNELS"  # environment variable; 0 keeps to the twins
# How far kernel and twin may lie apart in a trial, as a share of the twin's largest number. Wide:
# the trial looks for kernels that do not work there, the tests for the last digits.
_TRIAL_TOLERANCE = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 6e-2}


Launcher = Callable[[Launch], Sequence[mx.array]]


@dataclass(frozen=True)
class Operation:
    """An operation that kernels can compute. All functions take the operation's arguments.

    `trial` makes other arguments of the same shapes and dtypes, of harmless numbers.
    """

    name: str
    kernels: Callable[..., Sequence[mx.array]]
    twin: Callable[..., Sequence[mx.array]]
    trial: Callable[..., tuple[Any, ...]]
    has_choice: bool = True  # no: it was chosen already, among others (`choose`)
    on_cuda: bool = True  # no: its kernels need what only Metal has


@dataclass(frozen=True)
class Site:
    """A place where there is a choice: its name, what can run, and arguments that it met."""

    name: str
    operations: Mapping[str, Operation]
    arguments: tuple[Any, ...]


def _launch_here(launch: Launch) -> Sequence[mx.array]:
    return launch_on_cuda(launch) if on_cuda() else launch_on_metal(launch)


_launcher: Launcher = _launch_here
_forced = False
_counting = False
_trials: dict[tuple[Any, ...], bool | None] = {}  # None: the twin was chosen, nothing was tried
_chosen: dict[tuple[Any, ...], str] = {}
_met: list[Site] | None = None


def run(launch: Launch) -> Sequence[mx.array]:
    """The outputs of one launch."""
    return _launcher(launch)


@contextmanager
def forced(launcher: Launcher) -> Iterator[None]:
    """Run all kernels through `launcher`, whatever the device: for tests."""
    global _launcher, _forced
    before = _launcher, _forced
    _launcher, _forced = launcher, True
    try:
        yield
    finally:
        _launcher, _forced = before


@contextmanager
def unlaunched() -> Iterator[None]:
    """Build graphs of kernels that nobody means to compute: to see which sites they meet."""

    def leave_out(launch: Launch) -> Sequence[mx.array]:
        given = zip(launch.output_shapes, launch.output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in given]

    with forced(leave_out):
        yield


@contextmanager
def as_on_metal() -> Iterator[None]:
    """Build the graphs that a Metal device would compute, wherever: to count them."""
    global _counting
    _counting = True
    try:
        with forced(launch_on_metal):
            yield
    finally:
        _counting = False


def on_metal() -> bool:
    """Whether arrays are computed on a Metal GPU."""
    return mx.default_device().type == mx.DeviceType.gpu and mx.metal.is_available()


def on_cuda() -> bool:
    """Whether arrays are computed on an NVIDIA GPU."""
    return mx.default_device().type == mx.DeviceType.gpu and mx.cuda.is_available()


def has_kernels() -> bool:
    """Whether arrays are computed where our kernels can run."""
    return on_metal() or on_cuda()


def plans_for_metal() -> bool:
    """Whether a graph is one for a Metal GPU: to be computed there, or to be counted."""
    return _counting or on_metal()


def may_probe() -> bool:
    """Whether arrays are computed on a GPU, whatever its back-end, and not only counted."""
    return mx.default_device().type == mx.DeviceType.gpu and not _counting


def on_cpu() -> bool:
    """Whether arrays are computed by the CPU back-end."""
    return mx.default_device().type == mx.DeviceType.cpu and not _counting


def uses_kernels(operation: Operation, *arguments: Any) -> bool:
    """Whether kernels, and not the twin, compute `operation` for these arguments."""
    if _forced:
        if _met is not None and operation.has_choice:
            _meet(operation.name, {CUSTOM: operation}, arguments)
        return True
    if not has_kernels() or os.environ.get(SWITCH) == "0":
        return False
    key = (operation.name, *map(_kind, arguments))
    if key not in _trials:
        wanted = CUSTOM
        if operation.has_choice:
            usual = CUSTOM if on_metal() else STOCK
            wanted = _choice(operation.name, {CUSTOM: operation}, arguments, usual)
        _trials[key] = None if wanted == STOCK else passes_trial(operation, *arguments)
    return bool(_trials[key])


def choose(name: str, operations: Mapping[str, Operation], *arguments: Any) -> str:
    """Which of several operations was chosen for these arguments: its name, or STOCK."""
    if _forced or not on_metal():
        if _met is not None:
            _meet(name, operations, arguments)
        return STOCK
    key = (name, *map(_kind, arguments))
    if key not in _chosen:
        _chosen[key] = _choice(name, operations, arguments, STOCK)
    return _chosen[key]


def _choice(
    name: str, operations: Mapping[str, Operation], arguments: tuple[Any, ...], usual: str
) -> str:
    site = _meet(name, operations, arguments)
    return choices.choice(name, site, (STOCK, *operations)) or usual


def _meet(name: str, operations: Mapping[str, Operation], arguments: tuple[Any, ...]) -> str:
    """The name of a site; somebody may be waiting for it (`meeting`)."""
    site = " ".join([name, *map(_words, arguments)])
    able = {name: one for name, one in operations.items() if one.on_cuda or not on_cuda()}
    if _met is not None and able:
        _met.append(Site(site, able, arguments))
    return site


def _words(argument: Any) -> str:
    """`_kind` for people."""
    if isinstance(argument, mx.array):
        length = str(_width(argument)) if _width(argument) else ""
        return f"{argument.dtype}".removeprefix("mlx.core.") + length
    if isinstance(argument, tuple):
        return f"({' '.join(map(_words, argument))})"
    return "float" if isinstance(argument, float) else str(argument)


@contextmanager
def meeting() -> Iterator[list[Site]]:
    """The sites that are met inside, all of them as if for the first time."""
    global _met
    before, _met = _met, []
    _trials.clear()
    _chosen.clear()
    try:
        yield _met
    finally:
        _met = before
        _trials.clear()
        _chosen.clear()


def _kind(argument: Any) -> Any:
    """What decides which kernel is compiled: of an array the dtype and the last length; not the
    value of a float, which is an input."""
    if isinstance(argument, float):
        return float
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    return (_width(argument), argument.dtype) if isinstance(argument, mx.array) else argument


def _width(array: mx.array) -> tuple[int, ...]:
    """The length of a row. An array of one dimension may have a number for each token, and how many
    those are decides nothing; where it is a row of weights, what they are for is as long."""
    return array.shape[-1:] if array.ndim > 1 else ()


def trials() -> dict[str, bool]:
    """The operations that had a trial in this process: whether all trials of it passed."""
    verdicts: dict[str, bool] = {}
    for (name, *_), passed in _trials.items():
        if passed is not None:
            verdicts[name] = verdicts.get(name, True) and passed
    return verdicts


def passes_trial(operation: Operation, *arguments: Any) -> bool:
    """Compute the operation once both ways. Where they differ or it fails, warn and say False.

    MLX compiles and runs a kernel only when its outputs are evaluated, so without this a failure
    would end a generation in the middle.
    """
    trial = operation.trial(*arguments)
    try:
        got = operation.kernels(*trial)
        mx.eval(*got)
    except (RuntimeError, ValueError) as error:
        logger.warning("kernel %s fails, MLX's own is used: %s", operation.name, error)
        return False
    want = operation.twin(*trial)
    if not all(map(agree, got, want)):
        logger.warning("kernel %s is wrong here, MLX's own is used", operation.name)
        return False
    return True


def agree(got: mx.array, want: mx.array) -> bool:
    """Whether both are the same within what a trial forgives: shapes, dtypes, numbers."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if want.dtype not in _TRIAL_TOLERANCE:
        return bool(mx.array_equal(got, want))
    got, largest = got.astype(mx.float32), mx.max(mx.abs(want.astype(mx.float32)))
    error = mx.max(mx.abs(got - want.astype(mx.float32)))
    return bool(error <= _TRIAL_TOLERANCE[want.dtype] * largest)
