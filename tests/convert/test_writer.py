"""A safetensors file in one pass: every reader agrees, data aligned, no file before it is whole."""

import hashlib
import json
import os
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from mlx_diffusiongemma.convert.records import OutputTensor
from mlx_diffusiongemma.convert.writer import ShardWriter, in_file_order

METADATA = {"format": "mlx"}
ARRAYS = {
    "scalar": np.array([7], np.float16),
    "weight": np.arange(64, dtype=np.uint32).reshape(2, 32),
    "scales": np.arange(8, dtype=np.float16).reshape(2, 4),
    "biases": np.arange(8, 16, dtype=np.float16).reshape(2, 4),
    "odd bytes": np.arange(3, dtype=np.uint8),
    "single": np.arange(3, dtype=np.float32),
    "norm": np.arange(32, dtype=np.float16),
    "empty": np.zeros((0, 4), np.float32),
}
_DTYPES = {"float16": "F16", "float32": "F32", "uint32": "U32", "uint8": "U8"}


def outputs(arrays: dict[str, np.ndarray] = ARRAYS) -> list[OutputTensor]:
    return [
        OutputTensor(name, _DTYPES[str(array.dtype)], array.shape, array.nbytes)
        for name, array in arrays.items()
    ]


def write(path: Path, order: list[str] | None = None, pieces: int = 1) -> str:
    """Write ARRAYS, each in pieces, the tensors in an order of one's own; returns the digest."""
    with ShardWriter(path, outputs(), METADATA) as writer:
        for name in order or ARRAYS:
            for piece in np.array_split(ARRAYS[name].reshape(-1), pieces):
                writer.write(name, piece.data)
        return writer.finish().sha256


def offsets(path: Path) -> dict[str, tuple[int, int]]:
    """Tensor -> its bytes in the file, from the raw header."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == METADATA
    return {
        name: tuple(8 + length + offset for offset in entry["data_offsets"])
        for name, entry in header.items()
    }


def test_mlx_and_safetensors_read_the_same_numbers(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    assert metadata == METADATA
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == METADATA
        assert set(file.keys()) == set(arrays) == set(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
            if array.size:
                np.testing.assert_array_equal(np.array(arrays[name]), array)


def test_tensors_begin_at_multiples_of_64_where_their_sizes_allow_it(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path)
    begins = {name: begin for name, (begin, _) in offsets(path).items()}
    for name, array in ARRAYS.items():
        assert begins[name] % array.itemsize == 0
        if array.nbytes % 64 == 0:
            assert begins[name] % 64 == 0


def test_aligned_tensors_keep_their_order_and_odd_ones_come_last():
    names = [output.name for output in in_file_order(outputs())]
    assert names == ["weight", "norm", "empty", "scales", "biases", "single", "scalar", "odd bytes"]


def test_order_and_size_of_the_pieces_do_not_matter(tmp_path):
    path = tmp_path / "model.safetensors"
    digest = write(path)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    content = path.read_bytes()
    for order, pieces in ((list(ARRAYS), 3), (list(ARRAYS)[::-1], 1), (sorted(ARRAYS), 2)):
        assert write(path, order, pieces) == digest
        assert path.read_bytes() == content


def test_parts_of_a_tensor_may_come_in_turns(tmp_path):
    path = tmp_path / "model.safetensors"
    digest = write(path)
    with ShardWriter(path, outputs(), METADATA) as writer:
        for row in range(2):
            for name in ("weight", "scales", "biases"):
                writer.write(name, ARRAYS[name][row].data)
        for name in ("norm", "single", "scalar", "odd bytes"):
            writer.write(name, ARRAYS[name].data)
        assert writer.finish().sha256 == digest


def test_the_name_appears_with_the_last_byte(tmp_path):
    path = tmp_path / "model.safetensors"
    with ShardWriter(path, outputs(), METADATA) as writer:
        for name, array in ARRAYS.items():
            writer.write(name, array.reshape(-1).data)
        assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors.partial"]
        written = writer.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.stat().st_size == written.nbytes
    assert path.stat().st_mode & 0o777 == 0o644


def test_short_writes_are_continued(tmp_path, monkeypatch):
    digest = write(tmp_path / "whole")
    os_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: os_write(descriptor, data[:9]))
    assert write(tmp_path / "in nines") == digest
    assert (tmp_path / "in nines").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_bytes_are_on_the_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, call=call: (calls.append(name), call(*args))
        )
    write(tmp_path / "model.safetensors")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_failure_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyError),
        ShardWriter(tmp_path / "model.safetensors", outputs(), METADATA) as writer,
    ):
        writer.write("weight", ARRAYS["weight"].data)
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_missing_byte_is_our_own_bug(tmp_path):
    with (
        pytest.raises(AssertionError, match="weight is not whole"),
        ShardWriter(tmp_path / "model.safetensors", outputs(), METADATA) as writer,
    ):
        writer.write("weight", ARRAYS["weight"][:1].data)
        writer.finish()


def test_a_byte_too_many_is_our_own_bug(tmp_path):
    with (
        pytest.raises(AssertionError, match="scalar got more bytes"),
        ShardWriter(tmp_path / "model.safetensors", outputs(), METADATA) as writer,
    ):
        writer.write("scalar", np.zeros(2, np.float16).data)
