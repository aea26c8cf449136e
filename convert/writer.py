"""Write one safetensors file in one pass: the header, then the data in order, hashed on the way.

    8 bytes  length of the header
    header   JSON, padded with spaces so that the data begin at a multiple of 64
    data     tensors without gaps, which the format forbids

A tensor begins at a multiple of 64, which memory-mapping readers want: those whose size is no
multiple of 64 (scalars, in the released model) come last, the least even ones at the very end.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mlx_diffusiongemma.convert.plan import OutputTensor

ALIGNMENT = 64
PARTIAL = ".partial"  # ends the name of what is not finished
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class WrittenFile:
    """A finished file: its size in bytes and its digest."""

    nbytes: int
    sha256: str


def in_file_order(outputs: Sequence[OutputTensor]) -> list[OutputTensor]:
    """The order in which the tensors lie in the file: aligned ones as they come, then the rest."""
    return sorted(outputs, key=lambda output: -math.gcd(output.nbytes, ALIGNMENT))


def header(outputs: Sequence[OutputTensor], metadata: Mapping[str, str]) -> bytes:
    """Everything in front of the data, for tensors that lie there in this order."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for output in outputs:
        entries[output.name] = {
            "dtype": output.dtype,
            "shape": list(output.shape),
            "data_offsets": [begin, begin + output.nbytes],
        }
        begin += output.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Writes the file `path`, which appears under this name only when it is whole.

    The bytes of one tensor come in order. Those of a tensor whose place has not come yet wait in
    memory: scales and biases while their weight is written, and tensors that lie at the end.
    """

    def __init__(
        self, path: Path, outputs: Sequence[OutputTensor], metadata: Mapping[str, str]
    ) -> None:
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL)
        ordered = in_file_order(outputs)
        self._names = [output.name for output in ordered]
        self._missing = {output.name: output.nbytes for output in ordered}
        self._waiting: dict[str, list[memoryview]] = {name: [] for name in self._names}
        self._place = 0  # in _names: the tensor that is written now
        self._hash = hashlib.sha256()
        self._nbytes = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._descriptor: int | None = os.open(self._partial, flags, 0o644)
        try:
            self._append(memoryview(header(ordered, metadata)))
            self._advance()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:  # not finished: give the space back
            os.close(self._descriptor)
            self._descriptor = None
            self._partial.unlink(missing_ok=True)

    def write(self, name: str, data: memoryview) -> None:
        """Add the next bytes of a tensor."""
        data = data.cast("B")
        self._missing[name] -= len(data)
        assert self._missing[name] >= 0, f"{name} got more bytes than it has"
        if self._place < len(self._names) and name == self._names[self._place]:
            self._append(data)
            self._advance()
        else:
            self._waiting[name].append(data)

    def finish(self) -> WrittenFile:
        """Put the whole file on the disk and give it its name."""
        assert self._place == len(self._names), f"{self._names[self._place]} is not whole"
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        os.replace(self._partial, self._path)
        os.close(self._descriptor)
        self._descriptor = None
        sync_folder(self._path.parent)
        return WrittenFile(self._nbytes, self._hash.hexdigest())

    def _advance(self) -> None:
        """Go on to the first tensor that is not whole, and write what has waited for its place."""
        while self._place < len(self._names) and not self._missing[self._names[self._place]]:
            self._place += 1
            if self._place < len(self._names):
                waiting = self._waiting[self._names[self._place]]
                while waiting:
                    self._append(waiting.pop(0))

    def _append(self, data: memoryview) -> None:
        assert self._descriptor is not None
        self._hash.update(data)
        self._nbytes += len(data)
        while len(data):
            data = data[os.write(self._descriptor, data) :]
