"""Every random draw of a generation, behind one small interface, so that it can be replayed.

Drawing in a fixed order from explicit keys is what makes a seed repeat a text: whoever watches,
times or logs cannot reach the draws. Shapes: B batch, L canvas, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.kernels import Logits, LogitStatistics


class Draws(Protocol):
    """Where the tokens that chance decides come from."""

    def initial_canvas(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """int32 [B, L], uniform over the vocabulary: a new canvas."""
        ...

    def candidates(self, logits: Logits, statistics: LogitStatistics) -> mx.array:
        """int32 [B, L], one token per position from the distribution of logits [B, L, V]."""
        ...

    def renoise(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """int32 [B, L], uniform over the vocabulary: for positions that were not accepted."""
        ...


class SeededDraws:
    """Draws from a seed: the key of each is a hash of the seed and its number."""

    def __init__(self, seed: int):
        self._seed = seed
        self._drawn = 0

    def initial_canvas(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return kernels.noise_tokens(shape, vocab_size, self._next_key())

    def candidates(self, logits: Logits, statistics: LogitStatistics) -> mx.array:
        """See `Draws`."""
        return kernels.draw_tokens(logits, statistics, self._next_key())

    def renoise(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return kernels.noise_tokens(shape, vocab_size, self._next_key())

    def _next_key(self) -> mx.array:
        """A key that costs the device nothing: it is made of numbers of the host's."""
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed} {self._drawn}".encode(), digest_size=8).digest()
        return mx.random.key(int.from_bytes(digest))


@dataclass
class DrawTrace:
    """The draws of one generation in the order they were made; arrays int32 [B, L]."""

    initial_canvases: list[mx.array] = field(default_factory=list)
    candidates: list[mx.array] = field(default_factory=list)
    renoise: list[mx.array] = field(default_factory=list)


class RecordingDraws:
    """Passes draws through and keeps a copy of each in `trace`."""

    def __init__(self, source: Draws):
        self._source = source
        self.trace = DrawTrace()

    def initial_canvas(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return _kept(self.trace.initial_canvases, self._source.initial_canvas(shape, vocab_size))

    def candidates(self, logits: Logits, statistics: LogitStatistics) -> mx.array:
        """See `Draws`."""
        return _kept(self.trace.candidates, self._source.candidates(logits, statistics))

    def renoise(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return _kept(self.trace.renoise, self._source.renoise(shape, vocab_size))


class ReplayedDraws:
    """Gives back a recorded trace; GenerationError when it has no draw left or another shape."""

    def __init__(self, trace: DrawTrace):
        self._initial_canvases = iter(trace.initial_canvases)
        self._candidates = iter(trace.candidates)
        self._renoise = iter(trace.renoise)

    def initial_canvas(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return _next("initial canvas", self._initial_canvases, shape)

    def candidates(self, logits: Logits, statistics: LogitStatistics) -> mx.array:
        """See `Draws`."""
        return _next("candidates", self._candidates, statistics.best.shape)

    def renoise(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return _next("renoise tokens", self._renoise, shape)


def _kept(record: list[mx.array], drawn: mx.array) -> mx.array:
    mx.eval(drawn)  # a record that is lazy could be read in this thread only
    record.append(drawn)
    return drawn


def _next(what: str, recorded: Iterator[mx.array], shape: Sequence[int]) -> mx.array:
    drawn = next(recorded, None)
    if drawn is None or drawn.shape != tuple(shape):
        have = "no more" if drawn is None else f"shape {drawn.shape}"
        raise GenerationError(
            f"the trace has {have} {what}, this generation wants shape {tuple(shape)}",
            hint="replay a trace with the prompt, model and settings it was recorded with",
        )
    return drawn
