"""The one decision between Metal kernels and their plain-MLX twin, and where kernels are built.

An operation has a twin, which defines it, and a function that computes the same by launching
kernels. `uses_kernels` says which of the two runs: on a Metal device the kernels, unless they are
switched off or have failed their trial there; elsewhere the twin.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.kernels import choices
from mlx_diffusiongemma.kernels.choices import CUSTOM, STOCK

logger = logging.getLogger(__name__)

SWITCH = "DGEMMA_METAL_KERNELS"  # environment variable; 0 keeps to the twins
# How far kernel and twin may lie apart in a trial, as a share of the twin's largest number. Wide:
# the trial looks for kernels that do not work there, the tests for the last digits.
_TRIAL_TOLERANCE = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 6e-2}
_MARKER = "// @body\n"


@dataclass(frozen=True)
class Kernel:
    """A file `metal/<name>.metal`: functions, the line `// @body`, and the body of the kernel.

    `functions` names other files whose functions the body calls; they have no body of their own.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: what MLX needs to know besides the source."""

    kernel: Kernel
    inputs: tuple[mx.array, ...]
    template: tuple[tuple[str, int | bool | mx.Dtype], ...]
    grid: tuple[int, int, int]  # threads
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]

    def arguments(self) -> dict[str, Any]:
        """As the keyword arguments of the object that `mx.fast.metal_kernel` returns."""
        return {
            "inputs": list(self.inputs),
            "template": list(self.template),
            "grid": self.grid,
            "threadgroup": self.threadgroup,
            "output_shapes": list(self.output_shapes),
            "output_dtypes": list(self.output_dtypes),
        }


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


@dataclass(frozen=True)
class Site:
    """A place where there is a choice: its name, what can run, and arguments that it met."""

    name: str
    operations: Mapping[str, Operation]
    arguments: tuple[Any, ...]


def source(kernel: Kernel) -> tuple[str, str]:
    """Header and body; `#line` makes a compiler's messages name the files and their lines."""
    header = "".join(_part(name, _read(name)) for name in kernel.functions)
    own, marker, body = _read(kernel.name).partition(_MARKER)
    if not marker:
        raise ValueError(f"metal/{kernel.name}.metal has no line {_MARKER.strip()}")
    return header + _part(kernel.name, own), _part(kernel.name, body, own.count("\n") + 2)


def _read(name: str) -> str:
    return files("mlx_diffusiongemma.metal").joinpath(f"{name}.metal").read_text()


def _part(name: str, text: str, first_line: int = 1) -> str:
    return f'#line {first_line} "{name}.metal"\n{text}'


@cache
def metal_kernel(kernel: Kernel) -> Any:
    """MLX's object for `kernel`. It can be made anywhere, and called where there is Metal."""
    header, body = source(kernel)
    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        header=header,
        source=body,
    )


def _launch_on_metal(launch: Launch) -> Sequence[mx.array]:
    outputs: Sequence[mx.array] = metal_kernel(launch.kernel)(**launch.arguments())
    return outputs


_launcher: Launcher = _launch_on_metal
_forced = False
_counting = False
_trials: dict[tuple[Any, ...], bool] = {}
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
def as_on_metal() -> Iterator[None]:
    """Build the graphs that a Metal device would compute, wherever: to count them."""
    global _counting
    _counting = True
    try:
        with forced(_launch_on_metal):
            yield
    finally:
        _counting = False


def on_metal() -> bool:
    """Whether arrays are computed on a Metal GPU."""
    return mx.default_device().type == mx.DeviceType.gpu and mx.metal.is_available()


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
    if not on_metal() or os.environ.get(SWITCH) == "0":
        return False
    key = (operation.name, *map(_kind, arguments))
    if key not in _trials:
        wanted = CUSTOM
        if operation.has_choice:
            wanted = _choice(operation.name, {CUSTOM: operation}, arguments, CUSTOM)
        _trials[key] = wanted != STOCK and passes_trial(operation, *arguments)
    return _trials[key]


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
    if _met is not None:
        _met.append(Site(site, operations, arguments))
    return site


def _words(argument: Any) -> str:
    """`_kind` for people."""
    if isinstance(argument, mx.array):
        return f"{argument.dtype}".removeprefix("mlx.core.") + str(argument.shape[-1:])
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
    return (argument.shape[-1:], argument.dtype) if isinstance(argument, mx.array) else argument


def trials() -> dict[str, bool]:
    """The operations that had a trial in this process: whether all trials of it passed."""
    verdicts: dict[str, bool] = {}
    for (name, *_), passed in _trials.items():
        verdicts[name] = verdicts.get(name, True) and passed
    return verdicts


def passes_trial(operation: Operation, *arguments: Any) -> bool:
    """Compute the operation once both ways. Where they differ or Metal fails, warn and say False.

    MLX compiles and runs a kernel only when its outputs are evaluated, so without this a failure
    would end a generation in the middle.
    """
    trial = operation.trial(*arguments)
    try:
        got = operation.kernels(*trial)
        mx.eval(*got)
    except (RuntimeError, ValueError) as error:
        logger.warning("Metal kernel %s fails, MLX's own is used: %s", operation.name, error)
        return False
    want = operation.twin(*trial)
    if not all(map(agree, got, want)):
        logger.warning("Metal kernel %s is wrong here, MLX's own is used", operation.name)
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
