"""Read byte ranges of safetensors files: a few rows of a tensor at a time, never a mapped file.

    Source.rows(info, start, stop) -> [stop - start, values of a row], finite, in the file's dtype

A tensor counts as rows of its last dimension: [E, O, I] has E * O of them. `mx.load` reads whole
tensors and safetensors' own slices map the file, so that its pages count as resident memory.
"""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.errors import CheckpointError

SLICE_BYTES = 32 << 20  # of a source tensor that are in memory at a time

# safetensors' spelling -> how numpy holds it; BF16 as its bits.
NUMPY_DTYPES: dict[str, np.dtype] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "BOOL": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
}
_LENGTH = struct.Struct("<Q")  # the header's length, in front of it
_MAX_HEADER = 100_000_000  # what safetensors itself accepts


@dataclass(frozen=True)
class RowRange:
    """Rows start..stop-1 of a tensor."""

    start: int
    stop: int


def count_rows(shape: tuple[int, ...]) -> int:
    """How many rows of its last dimension a tensor has; a scalar has one."""
    rows = 1
    for dim in shape[:-1]:
        rows *= dim
    return rows


def row_ranges(shape: tuple[int, ...], row_bytes: int, limit: int) -> Iterator[RowRange]:
    """Cut a tensor into ranges of rows of at most `limit` bytes, each of at least one row."""
    rows = count_rows(shape)
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, rows, step):
        yield RowRange(start, min(start + step, rows))


class Source(AbstractContextManager["Source"]):
    """The files of a source checkpoint, opened when first read; close it, or use it in a `with`."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    def close(self, path: Path) -> None:
        """Close one file: nothing of it is needed any more."""
        if file := self._files.pop(path, None):
            os.close(file.descriptor)

    def rows(self, info: TensorInfo, rows: RowRange) -> np.ndarray:
        """Some rows of a tensor, as [rows, values of a row].

        CheckpointError names file and tensor when the file ends too early, when it is not what
        its header says, or when a value is NaN or infinite.
        """
        file = self._opened(info.file)
        dtype = _numpy_dtype(info)
        width = info.shape[-1] if info.shape else 1
        begin, end = file.range_of(info)
        if end - begin != count_rows(info.shape) * width * dtype.itemsize:
            raise CheckpointError(
                f"tensor `{info.name}` of `{info.file}` takes {end - begin} bytes, but its shape "
                f"{list(info.shape)} of {info.dtype} takes another number",
                hint="fetch this file again",
            )
        row_bytes = width * dtype.itemsize
        count = rows.stop - rows.start
        data = _read(file.descriptor, begin + rows.start * row_bytes, count * row_bytes, info)
        values = np.frombuffer(data, dtype).reshape(count, width)
        check_finite(values, info)
        return values

    def samples(self, path: Path, nbytes: int) -> Iterator[bytes]:
        """What tells a file from another: its size and header, some bytes of every tensor.

        Bytes that are missing are left out: reading the tensor names what is cut short.
        """
        file = self._opened(path)
        first = min((begin for begin, _ in file.ranges.values()), default=0)
        yield str(os.fstat(file.descriptor).st_size).encode()
        yield _pread(file.descriptor, 0, first)
        for begin, end in sorted(file.ranges.values()):
            for place in (begin, (begin + end) // 2, end - nbytes):
                yield _pread(file.descriptor, max(place, begin), min(nbytes, end - begin))

    def _opened(self, path: Path) -> "_File":
        if path not in self._files:
            self._files[path] = _File.open(path)
        return self._files[path]


@dataclass(frozen=True)
class _File:
    """An open safetensors file and where its tensors lie: name -> first byte, byte after it."""

    descriptor: int
    ranges: dict[str, tuple[int, int]]

    @classmethod
    def open(cls, path: Path) -> Self:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"`{path}` cannot be read: {error.strerror}") from None
        try:
            return cls(descriptor, _read_ranges(descriptor, path))
        except BaseException:
            os.close(descriptor)
            raise

    def range_of(self, info: TensorInfo) -> tuple[int, int]:
        if info.name not in self.ranges:
            raise CheckpointError(
                f"`{info.file}` holds no tensor `{info.name}` any more",
                hint="the file changed while it was read: start again",
            )
        return self.ranges[info.name]


def _read_ranges(descriptor: int, path: Path) -> dict[str, tuple[int, int]]:
    try:
        (length,) = _LENGTH.unpack(_pread(descriptor, 0, _LENGTH.size))
        if length > _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(_pread(descriptor, _LENGTH.size, length))
        header.pop("__metadata__", None)
        data = _LENGTH.size + length
        return {
            name: (data + entry["data_offsets"][0], data + entry["data_offsets"][1])
            for name, entry in header.items()
        }
    except (
        *(OSError, struct.error, ValueError, RecursionError),  # cut, no JSON, nested too deep
        *(KeyError, TypeError, AttributeError),
    ) as error:
        raise CheckpointError(
            f"`{path}` has no safetensors header: {error}", hint="fetch this file again"
        ) from None


def _numpy_dtype(info: TensorInfo) -> np.dtype:
    if info.dtype not in NUMPY_DTYPES:
        raise CheckpointError(
            f"tensor `{info.name}` of `{info.file}` has dtype {info.dtype}",
            hint=f"the converter reads {', '.join(NUMPY_DTYPES)}",
        )
    return NUMPY_DTYPES[info.dtype]


def _read(descriptor: int, offset: int, size: int, info: TensorInfo) -> bytes:
    try:
        data = _pread(descriptor, offset, size)
    except OSError as error:
        raise CheckpointError(
            f"tensor `{info.name}` of `{info.file}` cannot be read: {error.strerror}",
            hint="is the disk still there, and healthy?",
        ) from None
    if len(data) < size:
        raise CheckpointError(
            f"`{info.file}` is cut short inside of tensor `{info.name}`: it ends "
            f"{size - len(data)} bytes too early",
            hint="fetch this file again",
        )
    return data


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    """`size` bytes, fewer only at the end of the file; one call may return less than it could."""
    parts: list[bytes] = []
    missing = size
    while missing and (part := os.pread(descriptor, missing, offset + size - missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_finite(values: np.ndarray, info: TensorInfo) -> None:
    """CheckpointError when a floating-point value is NaN or infinite: its exponent is all ones."""
    if not values.size:
        return
    if info.dtype in ("BF16", "F16"):
        # By the bits, without a copy: as int16 the positive ones are the largest, as uint16 the
        # negative ones.
        infinite = {"BF16": 0x7F80, "F16": 0x7C00}[info.dtype]
        broken = values.view(np.int16).max() >= infinite
        broken |= values.view(np.uint16).max() >= infinite | 0x8000
    elif info.dtype in ("F32", "F64"):
        broken = not np.isfinite(values).all()
    else:
        return
    if broken:
        raise CheckpointError(
            f"tensor `{info.name}` of `{info.file}` holds NaN or infinite values",
            hint="these weights are damaged or overflowed: no conversion can repair them",
        )
