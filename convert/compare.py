"""How far the numbers of two checkpoints of one model lie apart, tensor by tensor, in slices.

However each is packed: both are unpacked to float32. For `dgemma-mlx inspect --diff`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.checkpoint import TensorInfo, plan_tensors, read_tensors
from mlx_diffusiongemma.config import read_config
from mlx_diffusiongemma.convert.pack import to_array, unpack
from mlx_diffusiongemma.convert.parts import SourceParameter, source_parameters
from mlx_diffusiongemma.convert.source import RowRange, Source, row_ranges
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import TensorClass, tensor_class

SLICE_BYTES = 32 << 20  # of float32 values that are compared at a time


@dataclass(frozen=True)
class TensorDifference:
    """One parameter in two checkpoints.

    Attributes:
        parameter, tensor_class, shape: what it is.
        packings: how either packs it; None where it does not.
        largest: max |one - other| / max |one|.
        rms: rms(one - other) / rms(one).
    """

    parameter: str
    tensor_class: TensorClass
    shape: tuple[int, ...]
    packings: tuple[Quantization | None, Quantization | None]
    largest: float
    rms: float


def compare(one: Path, other: Path) -> Iterator[TensorDifference]:
    """The differences, in the order of the model; images last, where both have them.

    CheckpointError when one is no whole checkpoint or when they are not of the same model.
    """
    first, second = _parameters(one), _parameters(other)
    if first.keys() != second.keys():
        odd = min(first.keys() ^ second.keys())
        holder = one if odd in first else other
        raise CheckpointError(
            f"`{odd}` is in `{holder}` only", hint="compare two forms of the same model"
        )
    with Source() as source:
        for name, parameter in first.items():
            if parameter.shape != second[name].shape:
                raise CheckpointError(
                    f"`{name}` has shape {list(parameter.shape)} in `{one}` and "
                    f"{list(second[name].shape)} in `{other}`",
                    hint="compare two forms of the same model",
                )
            yield _difference(source, parameter, second[name])


def _parameters(folder: Path) -> dict[str, SourceParameter]:
    found = plan_tensors(read_tensors(folder))
    parameters, _ = source_parameters(read_config(folder), found.used)
    images = (
        SourceParameter(info.name, info.shape, (info,), None)
        for info in found.left_out.get("vision", ())
    )
    return {parameter.name: parameter for parameter in (*parameters, *images)}


def _difference(source: Source, one: SourceParameter, other: SourceParameter) -> TensorDifference:
    largest = peak = 0.0
    squares = total = 0.0
    for rows in row_ranges(one.shape, 4 * (one.shape[-1] if one.shape else 1), SLICE_BYTES):
        values, others = _values(source, one, rows), _values(source, other, rows)
        error = values - others
        peak = max(peak, float(np.abs(values).max(initial=0)))
        largest = max(largest, float(np.abs(error).max(initial=0)))
        total += float(np.square(values, dtype=np.float64).sum())
        squares += float(np.square(error, dtype=np.float64).sum())
    return TensorDifference(
        parameter=one.name,
        tensor_class=tensor_class(one.name),
        shape=one.shape,
        packings=(one.quantization, other.quantization),
        largest=_ratio(largest, peak),
        rms=_ratio(math.sqrt(squares), math.sqrt(total)),
    )


def _ratio(error: float, size: float) -> float:
    """Zero for equal tensors, infinite where the first one is all zeros and the other is not."""
    return error / size if size else math.inf if error else 0.0


def _values(source: Source, parameter: SourceParameter, rows: RowRange) -> np.ndarray:
    """Some rows in float32, unpacked."""
    parts = [_read(source, info, rows) for info in parameter.sources]
    how = parameter.quantization
    array = parts[0].astype(mx.float32) if how is None else unpack(parts, how)
    return np.array(array)


def _read(source: Source, info: TensorInfo, rows: RowRange) -> mx.array:
    return to_array(source.rows(info, rows), info.dtype)
