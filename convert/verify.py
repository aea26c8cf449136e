"""Open what a conversion wrote; hold it against the plan, the digests and the source's values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors import SafetensorError, safe_open

from mlx_diffusiongemma.checkpoint import TensorInfo, read_tensors
from mlx_diffusiongemma.convert.journal import hash_file
from mlx_diffusiongemma.convert.pack import to_array, to_bits, unpack
from mlx_diffusiongemma.convert.records import ConversionPlan, ShardPlan, TensorPlan
from mlx_diffusiongemma.convert.source import RowRange, Source
from mlx_diffusiongemma.convert.writer import WrittenFile
from mlx_diffusiongemma.errors import CheckpointError, ConversionError

_HINT = "the disk may be failing, or something else writes there: check it, then convert again"


@dataclass(frozen=True)
class Sample:
    """One row of a tensor: the bits that were written for it and the values they stand for.

    Attributes:
        tensor, row: which one.
        written: bits of each output.
        source: float32 values in the source; None where the bits are a copy.
    """

    tensor: TensorPlan
    row: int
    written: tuple[np.ndarray, ...]
    source: np.ndarray | None


def check_shard(path: Path, shard: ShardPlan, samples: Iterable[Sample]) -> None:
    """Reopen a shard: its tensors are those of the plan, its sampled rows those of the source.

    ConversionError names the file and the tensor that differ.
    """
    _compare(_read_header(path), _expected([shard], path.parent), path)
    with Source() as file:
        for sample in samples:
            _check_row(sample, path, file)


def check_folder(folder: Path, plan: ConversionPlan, files: Mapping[str, WrittenFile]) -> None:
    """Reopen a whole result as its readers do, and hash its shards.

    ConversionError names what differs.
    """
    try:
        tensors = read_tensors(folder)
    except CheckpointError as error:
        raise ConversionError(f"the result cannot be read back: {error}", hint=_HINT) from None
    _compare(tensors, _expected(plan.shards, folder), folder)
    for name, file in files.items():
        if hash_file(folder / name) != file:
            raise ConversionError(f"`{folder / name}` is not what was written", hint=_HINT)


def _expected(shards: Sequence[ShardPlan], folder: Path) -> dict[str, TensorInfo]:
    return {
        output.name: TensorInfo(output.name, folder / shard.file, output.shape, output.dtype)
        for shard in shards
        for tensor in shard.tensors
        for output in tensor.outputs
    }


def _read_header(path: Path) -> dict[str, TensorInfo]:
    """Read with safetensors, not with our own reader, which would share our mistakes."""
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
            return {
                name: TensorInfo(name, path, tuple(part.get_shape()), str(part.get_dtype()))
                for name, part in parts.items()
            }
    except (OSError, SafetensorError) as error:
        raise ConversionError(f"`{path}` cannot be read back: {error}", hint=_HINT) from None


def _compare(
    found: Mapping[str, TensorInfo], expected: Mapping[str, TensorInfo], place: Path
) -> None:
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ConversionError(
                f"`{place}` should hold {expected.get(name, 'no such tensor')}, "
                f"but holds {found.get(name, 'nothing')} under the name `{name}`",
                hint=_HINT,
            )


def _check_row(sample: Sample, path: Path, file: Source) -> None:
    """The row in the file is the one written, and closer to the source than zeros are."""
    tensor = sample.tensor
    bits = []
    for output, written in zip(tensor.outputs, sample.written, strict=True):
        info = TensorInfo(output.name, path, output.shape, output.dtype)
        row = file.rows(info, RowRange(sample.row, sample.row + 1))
        if row.tobytes() != written.tobytes():
            raise ConversionError(
                f"row {sample.row} of `{output.name}` in `{path}` is not what was written",
                hint=_HINT,
            )
        bits.append(row)
    if sample.source is None:
        return
    parts = [
        to_array(part, output.dtype) for part, output in zip(bits, tensor.outputs, strict=True)
    ]
    how = tensor.quantization
    values = to_bits(unpack(parts, how) if how else parts[0].astype(mx.float32))
    error = np.square(values - sample.source).sum(dtype=np.float64)
    if error > np.square(sample.source).sum(dtype=np.float64):
        raise ConversionError(
            f"row {sample.row} of `{tensor.parameter}` in `{path}` is further from the source "
            "than zeros would be",
            hint="this is a fault of the converter: please report it with the source's name",
        )
