"""Byte ranges of a source: the right ones, complete, finite, and never a mapped file."""

import os
import struct
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from convert_plans import bits, normal, write_tensors

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.convert.source import RowRange, Source, row_ranges
from mlx_diffusiongemma.errors import CheckpointError

ARRAYS = {
    "experts": normal(3, 5, 8),
    "half": normal(4, 6, dtype=mx.float16),
    "single": normal(4, 6, dtype=mx.float32),
    "words": mx.array(np.arange(24, dtype=np.uint32).reshape(6, 4)),
    "bytes": mx.array(np.arange(24, dtype=np.uint8).reshape(6, 4)),
    "vector": normal(7),
    "scalar": mx.array(1.5, dtype=mx.bfloat16),
}


@pytest.fixture
def infos(tmp_path) -> dict[str, TensorInfo]:
    return write_tensors(tmp_path / "model.safetensors", ARRAYS)


def read(info: TensorInfo, start: int = 0, stop: int | None = None) -> np.ndarray:
    rows = info.size // (info.shape[-1] if info.shape else 1)
    with Source() as source:
        return source.rows(info, RowRange(start, rows if stop is None else stop))


@pytest.mark.parametrize("name", ARRAYS)
def test_all_rows_are_the_bytes_of_the_tensor(infos, name):
    assert read(infos[name]).tobytes() == bits(ARRAYS[name])


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (4, 6), (14, 15), (0, 15), (7, 7)])
def test_rows_count_through_all_leading_dimensions(infos, start, stop):
    expected = np.array(ARRAYS["experts"].view(mx.uint16)).reshape(15, 8)[start:stop]
    np.testing.assert_array_equal(read(infos["experts"], start, stop), expected)


@pytest.mark.parametrize("limit", [1, 16, 40, 47, 48, 240, 10_000])
def test_ranges_cover_every_row_once_within_the_limit(limit):
    ranges = list(row_ranges((3, 5, 8), 16, limit))
    assert [row for part in ranges for row in range(part.start, part.stop)] == list(range(15))
    assert all((part.stop - part.start) * 16 <= max(limit, 16) for part in ranges)
    assert len(ranges) == -(-15 // max(1, limit // 16))


def test_a_scalar_is_one_row_and_nothing_is_none():
    assert list(row_ranges((), 2, 1)) == [RowRange(0, 1)]
    assert list(row_ranges((0, 8), 0, 1)) == []


def test_short_reads_are_continued(infos, monkeypatch):
    pread = os.pread
    monkeypatch.setattr("os.pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))
    assert read(infos["experts"], 2, 5).tobytes() == bits(ARRAYS["experts"].reshape(15, 8)[2:5])


def test_a_cut_short_file_is_named_with_its_tensor(infos):
    last = max(infos.values(), key=lambda info: info.name == "bytes")
    path = last.file
    os.truncate(path, path.stat().st_size - 3)
    lost = []
    for info in infos.values():
        try:
            read(info)
        except CheckpointError as error:
            lost.append(info.name)
            assert f"`{path}` is cut short inside of tensor `{info.name}`" in str(error)
            assert "fetch" in error.hint
    assert lost


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named(tmp_path, dtype, broken):
    values = np.ones((4, 8), np.float32)
    values[2, 3] = broken
    infos = write_tensors(tmp_path / "a.safetensors", {"w": mx.array(values).astype(dtype)})
    assert read(infos["w"], 0, 2).shape == (2, 8)
    with pytest.raises(CheckpointError, match="`w` of `.*a.safetensors` holds NaN or infinite"):
        read(infos["w"], 1, 3)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_the_largest_finite_values_pass(tmp_path, dtype):
    largest = mx.finfo(dtype).max
    values = mx.array([[largest, -largest, 0.0, 1e-30]]).astype(dtype)
    infos = write_tensors(tmp_path / "a.safetensors", {"w": values})
    assert read(infos["w"]).tobytes() == bits(values)


def test_packed_words_may_look_like_nan(tmp_path):
    words = mx.full((2, 4), 0xFFFFFFFF, mx.uint32)
    infos = write_tensors(tmp_path / "a.safetensors", {"w": words})
    assert read(infos["w"]).tobytes() == bits(words)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 7, struct.pack("<Q", 10) + b"no json..", b"\xff" * 64),
        struct.pack("<Q", 500_000) + b'{"a":' * 100_000,
    ],
    ids=["empty", "short", "no JSON", "no length", "nested without end"],
)
def test_a_file_without_a_header_is_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="has no safetensors header"):
        read(TensorInfo("w", path, (1, 1), "F32"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="`.*gone` cannot be read"):
        read(TensorInfo("w", tmp_path / "gone", (1, 1), "F32"))


def test_a_tensor_that_went_away_is_named(infos):
    with pytest.raises(CheckpointError, match="holds no tensor `other`"):
        read(TensorInfo("other", infos["half"].file, (4, 6), "F16"))


def test_a_shape_that_does_not_fit_the_bytes_is_named(infos):
    with pytest.raises(
        CheckpointError, match=r"`half` of .* takes 48 bytes, but its shape \[4, 7\]"
    ):
        read(TensorInfo("half", infos["half"].file, (4, 7), "F16"))


def test_a_dtype_nobody_reads_is_named(infos):
    with pytest.raises(CheckpointError, match="`half` of .* has dtype F8_E4M3"):
        read(TensorInfo("half", infos["half"].file, (4, 6), "F8_E4M3"))


def test_files_are_closed(infos):
    before = os.listdir("/dev/fd")
    with Source() as source:
        source.rows(infos["half"], RowRange(0, 1))
        assert len(os.listdir("/dev/fd")) == len(before) + 1
        source.close(infos["half"].file)
        assert len(os.listdir("/dev/fd")) == len(before)
        source.rows(infos["half"], RowRange(0, 1))
    assert len(os.listdir("/dev/fd")) == len(before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_file_is_mapped(infos):
    with Source() as source:
        rows = source.rows(infos["experts"], RowRange(0, 15))
        assert infos["experts"].file.name not in Path("/proc/self/maps").read_text()
    assert rows.shape == (15, 8)
