"""Count what a computation launches and writes on a GPU, from its graph, without computing it.

    function, arrays --> trace --> nodes --> count --> launches and bytes by kind of node

`mx.export_function` hands over every node of the graph with its shapes. Three things stand between
that and launches, and each is dealt with in the same way for every program that is counted:

- back-ends without a GPU expand norms, rotations and `mx.dequantize` into ten nodes: `one_node`
  stands in for them, and for functions under `mx.compile`, which are one launch when they run;
- views launch nothing, unless no view can express a reshape: then it is a copy. Strides are
  followed through the graph to tell;
- a node may launch more than one kernel. What is known of that is counted apart, as hidden.

This file needs MLX alone, so that an interpreter without this package can count another program.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import mlx.core as mx

VIEWS = frozenset(
    {
        *("Broadcast", "Depends", "ExpandDims", "Flatten", "Reshape", "Slice", "Split"),
        *("Squeeze", "StopGradient", "Transpose", "Unflatten"),
    }
)
_RESHAPES = ("ExpandDims", "Flatten", "Reshape", "Squeeze", "Unflatten")
_COPIES_INPUTS = 9  # which argument of a CustomKernel says that strided inputs are copied first
_EXPANDED_FAST = ("rms_norm", "rope")
_MARKER = "stands_for_"
# MLX appends template arguments and the types of inputs and outputs to a kernel's name.
_VARIANT = re.compile(r"__.*|(_(float|bfloat16_t|float16_t|u?int\d+_t|bool)[sc]*)+$")

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """An array of the graph."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Node:
    """One primitive of the graph with its state, as MLX exports it."""

    name: str
    arguments: Sequence[Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass
class Count:
    """What nodes launch and write, by their kind.

    Attributes:
        launches: as far as the graph shows them.
        nbytes: what those write.
        large: arrays of a given number of elements or more that they write.
        hidden: launches on top, by their reason.
    """

    launches: Counter[str] = field(default_factory=Counter)
    nbytes: Counter[str] = field(default_factory=Counter)
    large: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)


def trace(function: Callable[..., Any], arrays: Sequence[mx.array]) -> list[Node]:
    """The graph of `function(*arrays)`, in an order in which it can be computed.

    The arrays may be lazy: only their shapes count. What else the function reads is part of the
    graph if it is lazy, and a constant if it is not. Nothing is evaluated meanwhile.
    """
    nodes: list[Node] = []

    def collect(entry: dict[str, Any]) -> None:
        if entry["type"] == "primitive":
            inputs, outputs = (
                tuple(_tensor(*one) for one in entry[side]) for side in ("inputs", "outputs")
            )
            nodes.append(Node(entry["name"], entry["arguments"], inputs, outputs))

    with _as_graph():
        mx.export_function(collect, function, *arrays)
    return nodes


def _tensor(name: str, shape: Sequence[int], dtype: mx.Dtype) -> Tensor:
    return Tensor(name, tuple(shape), math.prod(shape) * dtype.size)


def one_node(name: str, function: Callable[..., Any]) -> Callable[..., mx.array]:
    """`function` as one node of the graph, with its inputs and output; for counting only."""

    @wraps(function)
    def marked(*arguments: Any, **options: Any) -> mx.array:
        output = function(*arguments, **options)  # for its shape; no part of the graph
        given = (*arguments, *options.values())
        inputs = [argument for argument in given if isinstance(argument, mx.array)]
        kernel: Any = mx.fast.metal_kernel(
            name=_MARKER + name,
            input_names=[f"in{i}" for i in range(len(inputs))],
            output_names=["out"],
            source="",
            ensure_row_contiguous=False,
        )
        outputs: Sequence[mx.array] = kernel(
            inputs=inputs,
            template=[],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[output.shape],
            output_dtypes=[output.dtype],
        )
        return outputs[0]

    return marked


@contextmanager
def _as_graph() -> Iterator[None]:
    nothing = lambda *arrays: None  # noqa: E731
    places: list[tuple[Any, str, Callable[..., Any]]] = [
        *((mx.fast, name, one_node(name, getattr(mx.fast, name))) for name in _EXPANDED_FAST),
        (mx, "dequantize", one_node("dequantize", mx.dequantize)),
        (mx, "eval", nothing),
        (mx, "async_eval", nothing),
    ]
    before = [getattr(module, name) for module, name, _ in places]
    try:
        for module, name, function in places:
            setattr(module, name, function)
        yield
    finally:
        for (module, name, _), function in zip(places, before, strict=True):
            setattr(module, name, function)


def count(nodes: Iterable[Node], large: int) -> Count:
    """What the nodes launch and write; arrays of `large` elements or more are counted too.

    A `SliceUpdate` writes its update alone: nobody else holds the buffer that it goes into, which
    is so for a KV cache.
    """
    counting = _Counting(large)
    for node in nodes:
        if node.name in VIEWS:
            counting.view(node)
        elif node.name == "CustomKernel":
            counting.kernel(node)
        elif node.name == "SliceUpdate":
            counting.launch(node.name, node.inputs[1:2])
        else:
            counting.launch(node.name, node.outputs)
        if node.name == "Concatenate":
            counting.total.hidden["copies of further pieces"] += len(node.inputs) - 1
        if node.name == "GatherQMM":
            counting.total.hidden["offsets of sorted experts"] += 1
    return counting.total


class _Counting:
    """Counts nodes in order, and remembers the strides of views."""

    def __init__(self, large: int):
        self.total = Count()
        self._large = large
        self._strides: dict[str, Strides] = {}

    def launch(self, kind: str, outputs: Iterable[Tensor]) -> None:
        self.total.launches[kind] += 1
        for tensor in outputs:
            self.total.nbytes[kind] += tensor.nbytes
            self.total.large[kind] += math.prod(tensor.shape) >= self._large

    def kernel(self, node: Node) -> None:
        """A kernel of somebody's own: MLX copies strided inputs for it, where it says so."""
        kind = node.arguments[0].removeprefix("custom_kernel_")
        if not kind.startswith(_MARKER) and node.arguments[_COPIES_INPUTS]:
            for tensor in {tensor.name: tensor for tensor in node.inputs}.values():
                if self._of(tensor) != whole(tensor.shape):
                    self.launch("copy of a kernel's input", [tensor])
        self.launch(_VARIANT.sub("", kind.removeprefix(_MARKER)), node.outputs)

    def view(self, node: Node) -> None:
        """Give the outputs of a view their strides, or count the copy that it needs instead."""
        source, old = node.inputs[0], self._of(node.inputs[0])
        for output in node.outputs:
            new: Strides | None = old
            if node.name == "Transpose":
                new = tuple(old[axis] for axis in node.arguments[0])
            elif node.name == "Slice":
                new = tuple(step * by for step, by in zip(old, node.arguments[2], strict=True))
            elif node.name == "Broadcast":
                missing = len(output.shape) - len(source.shape)
                axes = zip(old, source.shape, output.shape[missing:], strict=True)
                new = (0,) * missing + tuple(s if a == b else 0 for s, a, b in axes)
            elif node.name in _RESHAPES:
                new = reshaped(source.shape, old, output.shape)
            if new is None:
                self.launch("copy for a reshape", [output])
                new = whole(output.shape)
            lengths = zip(new, output.shape, strict=True)
            self._strides[output.name] = tuple(0 if n == 1 else step for step, n in lengths)

    def _of(self, tensor: Tensor) -> Strides:
        return self._strides.get(tensor.name, whole(tensor.shape))


def whole(shape: Sequence[int]) -> Strides:
    """Strides of an array without holes, in elements; 0 where a length is 1, and none counts."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step if length != 1 else 0)
        step *= length
    return tuple(reversed(strides))


def reshaped(shape: Sequence[int], strides: Strides, to: Sequence[int]) -> Strides | None:
    """Strides of a view of another shape, or None where only a copy has it."""
    runs: list[tuple[int, int]] = []  # length, stride of axes that lie without holes between them
    for length, stride in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if runs and runs[-1][1] == length * stride:
            runs[-1] = (runs[-1][0] * length, stride)
        else:
            runs.append((length, stride))
    left, stride = runs.pop() if runs else (1, 0)
    found = []
    for length in reversed(to):
        if length == 1:
            found.append(0)
            continue
        if left == 1 and runs:
            left, stride = runs.pop()
        if left % length:
            return None
        found.append(stride)
        left, stride = left // length, stride * length
    return tuple(reversed(found))
