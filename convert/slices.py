"""One tensor of a plan, slice after slice: read rows, unpack, cast or pack, measure the error.

    rows of each source -> values [rows, width] -> rows of each output (lazy MLX arrays)

A slice is small whatever the tensor, so this bounds the memory of a conversion.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.convert.pack import MLX_DTYPES, pack, to_array, to_bits, unpack
from mlx_diffusiongemma.convert.records import TensorError, TensorPlan
from mlx_diffusiongemma.convert.search import pack_searched
from mlx_diffusiongemma.convert.source import (
    SLICE_BYTES,
    RowRange,
    Source,
    count_rows,
    row_ranges,
)
from mlx_diffusiongemma.device import on_cpu
from mlx_diffusiongemma.errors import CheckpointError

MEASURED_VALUES = 1 << 20  # of a tensor, in rows spread over all of it
_SEARCHED_PART = 16  # searching takes about so many times a slice's memory
_VALUE_BYTES = 2
_CPU_STREAMS = 2  # as many slices as wait while one is written


@dataclass(frozen=True)
class Slice:
    """Rows of a tensor on their way; MLX arrays in it are not evaluated yet.

    Attributes:
        tensor: what it is a part of.
        rows: which rows.
        outputs: rows of each output; of a copied tensor the bits as they were read.
        error: of the measured rows (see `ErrorSum`); None when nothing is packed here.
        fits: whether every value is one in the tensor's dtype; None where it always is.
        first_row: float32 values of the first row in the source, to check the file by; None in
            most slices of a search and where the bits are copied.
    """

    tensor: TensorPlan
    rows: RowRange
    outputs: tuple[mx.array | np.ndarray, ...]
    error: mx.array | None = None
    fits: mx.array | None = None
    first_row: mx.array | None = None


@dataclass
class ErrorSum:
    """Adds up the errors of slices, in float64: float32 sums lose four digits on long tensors."""

    squares: float = 0.0
    source_squares: float = 0.0
    nearest_squares: float = 0.0
    largest: float = 0.0
    source_largest: float = 0.0

    def add(self, measured: mx.array) -> None:
        """Add what `_measure` found in a slice."""
        squares, source_squares, nearest, largest, source_largest = to_bits(measured)
        self.squares += float(squares.sum(dtype=np.float64))
        self.source_squares += float(source_squares.sum(dtype=np.float64))
        self.nearest_squares += float(nearest.sum(dtype=np.float64))
        self.largest = max(self.largest, float(largest.max()))
        self.source_largest = max(self.source_largest, float(source_largest.max()))

    def as_error(self, *, is_searched: bool) -> TensorError:
        """The error of the tensor; zero where the source is."""
        gain = None
        if is_searched:
            gain = 0.0
            if self.nearest_squares > 0:
                gain = 1 - math.sqrt(self.squares / self.nearest_squares)
        return TensorError(
            largest=self.largest / self.source_largest if self.source_largest else 0.0,
            rms=math.sqrt(self.squares / self.source_squares) if self.source_squares else 0.0,
            search_gain=gain,
        )


def slices(
    tensor: TensorPlan, source: Source, *, search: bool, slice_bytes: int = SLICE_BYTES
) -> Iterator[Slice]:
    """All rows of a tensor in order, in slices of about `slice_bytes` of bfloat16 values."""
    first = tensor.sources[0]
    packing = tensor.source_quantization
    width = first.shape[-1] if first.shape else 1
    row_bytes = first.nbytes // count_rows(first.shape) if first.size else 0
    if packing and tensor.action != "copy":
        width = width * 32 // packing.bits
        row_bytes = max(row_bytes, width * _VALUE_BYTES)
    if search and tensor.action == "quantize":
        slice_bytes //= _SEARCHED_PART
    step = max(1, count_rows(first.shape) * width // MEASURED_VALUES)
    for number, rows in enumerate(row_ranges(first.shape, row_bytes, slice_bytes)):
        bits = [source.rows(info, rows) for info in tensor.sources]
        _check_repeats(tensor, rows, bits, source)
        if tensor.action == "copy":
            yield Slice(tensor, rows, tuple(bits))
            continue
        parts = [
            to_array(part, info.dtype) for part, info in zip(bits, tensor.sources, strict=True)
        ]
        values = unpack(parts, packing) if packing else parts[0]
        is_sampled = not search or number % _SEARCHED_PART == 0
        with mx.stream(_packing()[number % len(_packing())]):
            outputs = _convert(tensor, values, search=search)
        with mx.stream(_measuring()):
            first_row = values[:1].astype(mx.float32) if is_sampled else None
            error = _measure(tensor, rows, values, outputs, search=search, step=step)
            fits = None
            if tensor.dtype == "float16":  # bfloat16 has the range of float32
                fits = mx.isfinite(values.astype(MLX_DTYPES[tensor.dtype])).all()
        del bits, parts, values
        yield Slice(tensor, rows, outputs, error, fits, first_row)


def _check_repeats(
    tensor: TensorPlan, rows: RowRange, bits: list[np.ndarray], source: Source
) -> None:
    """CheckpointError when a copy of the tensor holds other numbers in these rows."""
    for repeat in tensor.repeats:
        original, copy = repeat.original, repeat.copy
        ours = bits[tensor.sources.index(original)]
        theirs = source.rows(copy, rows)
        if original.dtype == copy.dtype and ours.tobytes() == theirs.tobytes():
            continue
        is_same = False
        if original.is_float:  # zero has two signs, and a copy may have another dtype
            with mx.stream(_measuring()):
                one, other = to_array(ours, original.dtype), to_array(theirs, copy.dtype)
                is_same = bool(mx.array_equal(one.astype(mx.float32), other.astype(mx.float32)))
        if not is_same:
            raise CheckpointError(
                f"`{copy.name}` of `{copy.file}` should repeat `{original.name}` of "
                f"`{original.file}`, and holds other numbers",
                hint="this model has one weight for both: write the source again with the two "
                "tied, or remove the one that is wrong",
            )


@cache
def _packing() -> tuple[mx.Stream, ...]:
    """Where slices are packed, in turns: a stream of the CPU keeps one core busy, a GPU itself."""
    count = _CPU_STREAMS if on_cpu() else 1
    return tuple(mx.new_stream(mx.default_device()) for _ in range(count))


@cache
def _measuring() -> mx.Stream:
    """Where errors are computed, so that they need not wait for the next slice to be packed."""
    return mx.new_stream(mx.default_device())


def _convert(tensor: TensorPlan, values: mx.array, *, search: bool) -> tuple[mx.array, ...]:
    """Rows of each output."""
    cast = values.astype(MLX_DTYPES[tensor.dtype])
    how = tensor.quantization
    if how is None:
        return (cast,)
    return pack_searched(cast, how) if search else pack(cast, how)


def _measure(
    tensor: TensorPlan,
    rows: RowRange,
    values: mx.array,
    outputs: tuple[mx.array, ...],
    *,
    search: bool,
    step: int,
) -> mx.array | None:
    """What `ErrorSum` adds up, for every `step`-th row of the tensor: [5, measured rows]."""
    how = tensor.quantization
    first = -rows.start % step
    if how is None or first >= rows.stop - rows.start:
        return None
    measured = slice(first, None, step)
    written = unpack([output[measured] for output in outputs], how)
    values = values[measured]
    cast = values.astype(MLX_DTYPES[tensor.dtype])
    nearest = unpack(pack(cast, how), how) if search else written
    values = values.astype(mx.float32)
    difference = written - values
    return mx.stack(
        [
            difference.square().sum(axis=-1),
            values.square().sum(axis=-1),
            (nearest - values).square().sum(axis=-1),
            mx.abs(difference).max(axis=-1),
            mx.abs(values).max(axis=-1),
        ]
    )
