"""Our model through the passes of tools/reference/passes.py, and the comparison of the two.

The fixtures and the live checks both come here: `errors(model, recording)`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np
import pytest
from recordings import Recording
from tolerances import PARITY

from mlx_diffusiongemma.kernels import Routing, Stream
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.decoder_layer import DecoderLayer
from mlx_diffusiongemma.model.experts import Router

TEMPERATURE = 0.25  # as the recorder's
WHOLE = 2048  # prefill in one piece


def errors(
    model: DiffusionGemma, recording: Recording, *, chunk_size: int = WHOLE
) -> dict[str, float]:
    """Largest absolute error of each quantity of each pass, such as "denoise/hidden"."""
    ours = run(model, recording, chunk_size=chunk_size)
    largest: dict[str, float] = defaultdict(float)
    for name, expected in recording.items():
        if "/" in name:
            quantity = "/".join(name.split("/")[:2])
            largest[quantity] = max(largest[quantity], _error(name, ours, recording, expected))
    return dict(largest)


def failures(found: dict[str, float]) -> dict[str, float]:
    """Those errors that are beyond their tolerance; NaN is."""
    return {
        name: error for name, error in found.items() if not error <= PARITY[name.partition("/")[2]]
    }


def _error(name: str, ours: Recording, theirs: Recording, expected: np.ndarray) -> float:
    got = ours[name]
    if "/experts/" in name:
        got, expected = np.sort(got, axis=-1), np.sort(expected, axis=-1)
        return float((got[:, -expected.shape[1] :] != expected).any(-1).sum())
    if "/weights/" in name:
        route = name.replace("weights", "experts")
        got = np.take_along_axis(got, np.argsort(ours[route], axis=-1), axis=-1)
        expected = np.take_along_axis(expected, np.argsort(theirs[route], axis=-1), axis=-1)
    axis = 2 if "/keys/" in name or "/values/" in name else 1
    kept = expected.shape[axis]
    got = np.take(got, range(got.shape[axis] - kept, got.shape[axis]), axis=axis)
    return float(np.abs(got - expected).max())


def run(model: DiffusionGemma, inputs: Recording, *, chunk_size: int = WHOLE) -> Recording:
    """The passes of a recording on its inputs, fed the recorded logits of its first step."""
    cache = model.make_cache()
    out: Recording = {}
    previous = mx.array(inputs["denoise/logits"] / np.float32(TEMPERATURE))
    _prefill(model, cache, inputs["prompt"], "prompt", out, chunk_size)
    canvas = mx.array(inputs["canvas"])
    with _traced("denoise", len(cache.layers), out):
        out["denoise/logits"] = _array(model.denoise(canvas, cache, None))
    out["conditioned/logits"] = _array(model.denoise(canvas, cache, previous))
    if "block/logits" in inputs:
        _prefill(model, cache, inputs["block"], "block", out, chunk_size)
        second = model.denoise(mx.array(inputs["second_canvas"]), cache, previous)
        out["second/logits"] = _array(second)
    return out


def _prefill(model, cache, ids: np.ndarray, name: str, out: Recording, chunk_size: int) -> None:
    with _traced(name, len(cache.layers), out):
        hidden = model.prefill(mx.array(ids), cache, chunk_size)
    out[f"{name}/logits"] = _array(model.head(hidden[:, -1:]))
    for index, layer in enumerate(cache.layers):
        keys, values = layer.state()
        out[f"{name}/keys/{index}"] = _array(keys)
        out[f"{name}/values/{index}"] = _array(values)


@contextmanager
def _traced(name: str, layers: int, out: Recording) -> Iterator[None]:
    """Note what each layer and its router return; chunks of a prompt are put together again."""
    hidden: list[Stream] = []
    routes: list[Routing] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, method, notes in (
            (DecoderLayer, "prefill", hidden),
            (DecoderLayer, "denoise", hidden),
            (Router, "__call__", routes),
        ):
            patch.setattr(owner, method, _noting(getattr(owner, method), notes))
        yield
    for index in range(layers):
        chunks = [stream.residual for stream in hidden[index::layers]]
        out[f"{name}/hidden/{index}"] = _array(mx.concatenate(chunks, axis=1))
        for kind in ("experts", "weights"):
            rows = [
                getattr(routing, kind).reshape(*chunk.shape[:2], -1)
                for routing, chunk in zip(routes[index::layers], chunks, strict=True)
            ]
            out[f"{name}/{kind}/{index}"] = _array(mx.concatenate(rows, axis=1))


def _noting(original: Callable, notes: list) -> Callable:
    def noted(*args: object) -> object:
        notes.append(original(*args))
        return notes[-1]

    return noted


def _array(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))
