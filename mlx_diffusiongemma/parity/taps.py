"""What our model computes on the way, observed from outside: its own code runs as it always does.

Between the layers' products everything goes through a few functions of `kernels`, and these are
what is listened to:

    prepare_heads     --> queries, keys, values
    add_attention     <-- attention, --> residual
    route             <-- router scores, --> experts, router weights
    add_feed_forward  <-- dense, routed, --> output, and the norm that follows

The functions are replaced while a pass is observed, and so is the module of self-conditioning:
nobody else may use a model meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Heads, Routing, Stream
from mlx_diffusiongemma.kernels.reference import combine_experts
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.parity.layout import (
    EMBEDDING,
    FINAL_NORM,
    SELF_CONDITIONING,
    SOFT_EMBEDDING,
)

Notes = dict[tuple[int | None, str], np.ndarray]


class Observation:
    """Collects the wanted rows of one pass, chunk after chunk of its tokens."""

    def __init__(self, rows: np.ndarray, layers: int):
        self._rows = rows
        self._layers = layers
        self._layer = 0
        self._start = 0  # of the present chunk
        self._pieces: dict[tuple[int | None, str], list[np.ndarray]] = defaultdict(list)

    def notes(self) -> Notes:
        """Everything that was seen, [rows, values]."""
        return {key: np.concatenate(pieces) for key, pieces in self._pieces.items()}

    def heads(self, original: Callable[..., Heads], *arguments: Any) -> Heads:
        """Stands in for `kernels.prepare_heads`."""
        heads = original(*arguments)
        for operation, array in zip(("queries", "keys", "values"), heads, strict=True):
            self._note(operation, array.swapaxes(1, 2).flatten(-2))
        return heads

    def attention(self, original: Callable[..., Any], *arguments: Any) -> Any:
        """Stands in for `kernels.add_attention`."""
        residual, attended = arguments[:2]
        if self._layer == 0 and (None, SELF_CONDITIONING) not in self._pieces:
            self._note(EMBEDDING, residual, layer=None)
        inputs = original(*arguments)
        self._note("attention", attended)
        self._note("residual", inputs.residual)
        return inputs

    def route(self, original: Callable[..., Routing], *arguments: Any) -> Routing:
        """Stands in for `kernels.route`."""
        routing = original(*arguments)
        self._note("router_scores", arguments[0][None])
        self._note("experts", routing.experts[None].astype(mx.int32))
        self._note("router_weights", routing.weights[None])
        return routing

    def feed_forward(self, original: Callable[..., Stream], *arguments: Any) -> Stream:
        """Stands in for `kernels.add_feed_forward`, which ends a layer."""
        residual, dense, outputs, routing = arguments[:4]
        stream = original(*arguments)
        self._note("dense", dense)
        rows = mx.array(self._wanted(residual.shape[1]))
        routed = combine_experts(outputs, routing.inverse[rows], routing.weights[rows])
        self._keep((self._layer, "routed"), routed)
        self._note("output", stream.residual)
        self._layer += 1
        if self._layer == self._layers:
            self._note(FINAL_NORM, stream.normed, layer=None)
            self._layer, self._start = 0, self._start + residual.shape[1]
        return stream

    def self_conditioning(
        self, embedded: mx.array, soft: Sequence[mx.array], scale: mx.array, output: mx.array
    ) -> None:
        """What the module of that name got and made of it."""
        self._note(EMBEDDING, embedded * scale, layer=None)
        if soft:
            whole = soft[0]
            for part in soft[1:]:
                whole = whole + part
            self._note(SOFT_EMBEDDING, whole * scale, layer=None)
        self._note(SELF_CONDITIONING, output, layer=None)

    def _note(self, operation: str, array: mx.array, **place: None) -> None:
        """Keep the wanted rows of [1, T, values], of this layer or, with `layer=None`, of none."""
        layer = None if place else self._layer
        rows = mx.array(self._wanted(array.shape[1]))
        self._keep((layer, operation), array[0][rows])

    def _keep(self, key: tuple[int | None, str], rows: mx.array) -> None:
        is_whole = rows.dtype == mx.int32
        self._pieces[key].append(np.array(rows if is_whole else rows.astype(mx.float32)))

    def _wanted(self, length: int) -> np.ndarray:
        """Which of the next `length` tokens are wanted, counted from the chunk's start."""
        rows = self._rows - self._start
        return rows[(rows >= 0) & (rows < length)].astype(np.int32)


class _Overheard(nn.Module):
    """A self-conditioning module that tells what it computes."""

    def __init__(self, module: nn.Module, observation: Observation):
        super().__init__()
        self.module = module
        self._observation = observation

    def __call__(
        self,
        embedded: mx.array,
        soft: Sequence[mx.array],
        scale: mx.array,
        next_norm: mx.array,
    ) -> Stream:
        """As the module itself."""
        stream: Stream = self.module(embedded, soft, scale, next_norm)
        self._observation.self_conditioning(embedded, soft, scale, stream.residual)
        return stream


@contextmanager
def observing(model: DiffusionGemma, rows: np.ndarray) -> Iterator[Observation]:
    """Observe one pass of `model`: its tokens at `rows`, ascending."""
    observation = Observation(rows, len(model.config.layers))
    listeners: dict[str, Callable[..., Any]] = {
        "prepare_heads": observation.heads,
        "add_attention": observation.attention,
        "route": observation.route,
        "add_feed_forward": observation.feed_forward,
    }
    originals = {name: vars(kernels)[name] for name in listeners}
    decoder = model.model.decoder
    module = decoder.self_conditioning
    try:
        for name, listener in listeners.items():
            setattr(kernels, name, _overhearing(originals[name], listener))
        overheard: Any = _Overheard(module, observation)
        decoder.self_conditioning = overheard
        yield observation
    finally:
        decoder.self_conditioning = module
        for name, original in originals.items():
            setattr(kernels, name, original)


def _overhearing(original: Callable[..., Any], listener: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: listener(original, *arguments)
