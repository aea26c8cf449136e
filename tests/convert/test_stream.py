"""Carrying out a plan: the bytes, what is reported, and what stands in the way of a start."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
import tiny
from convert_plans import (
    bits,
    content,
    load,
    plan_of,
    write_source,
)

from mlx_diffusiongemma.checkpoint import INDEX, read_tensors
from mlx_diffusiongemma.convert import stream
from mlx_diffusiongemma.convert.pack import pack
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.errors import CheckpointError, ConversionError
from mlx_diffusiongemma.recipes import RECIPES


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("stream") / "source")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_tensor_is_the_source_packed_at_once(source, tmp_path, recipe):
    plan = plan_of(source, recipe)
    run(plan, tmp_path / "output")
    originals, written = load(source), load(tmp_path / "output")
    assert set(written) == {output.name for tensor in plan.tensors for output in tensor.outputs}
    for tensor in plan.tensors:
        original = originals[tensor.sources[0].name]
        expected = pack(original, tensor.quantization) if tensor.quantization else (original,)
        for output, array in zip(tensor.outputs, expected, strict=True):
            assert bits(written[output.name]) == bits(array), output.name


def test_twice_gives_identical_files(source, tmp_path):
    for name in ("first", "second"):
        run(plan_of(source), tmp_path / name)
    assert content(tmp_path / "first") == content(tmp_path / "second")


def test_the_index_names_every_tensor(source, tmp_path):
    plan = plan_of(source)
    run(plan, tmp_path / "output")
    index = json.loads((tmp_path / "output" / INDEX).read_text())
    found = read_tensors(tmp_path / "output")
    assert index["weight_map"] == {name: info.file.name for name, info in sorted(found.items())}
    assert list(index["weight_map"]) == sorted(found)
    assert index["metadata"] == {"total_size": plan.nbytes}
    assert len(set(index["weight_map"].values())) == len(plan.shards) >= 3


def test_nothing_is_left_beside_the_output(source, tmp_path):
    plan = plan_of(source)
    result = run(plan, tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert set(result.sha256) == {shard.file for shard in plan.shards}
    assert set(content(tmp_path / "output")) == {*result.sha256, INDEX}


def test_progress_counts_the_bytes_of_the_output(source, tmp_path):
    plan = plan_of(source)
    seen = []
    run(plan, tmp_path / "output", progress=seen.append)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done) and done[-1] == plan.nbytes
    assert {progress.total_bytes for progress in seen} == {plan.nbytes}
    assert [progress.tensor for progress in seen] == [tensor.parameter for tensor in plan.tensors]


def test_broken_weights_stop_the_conversion(tmp_path):
    values = tiny.config_values()
    arrays = tiny.random_tensors(values)
    name = "model.decoder.layers.2.experts.down_proj"
    arrays[name][1, 2, 3] = float("nan")
    folder = tiny.write_checkpoint(tmp_path / "source", values, arrays)
    with pytest.raises(CheckpointError, match=f"`{name}` of `.*model.safetensors` holds NaN"):
        run(plan_of(folder), tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_source_files_are_asked_for_before_and_after_their_use(source, tmp_path):
    plan = plan_of(source)
    log: list[tuple[str, str]] = []
    here: set[Path] = set()

    def before(path: Path) -> None:
        log.append(("before", path.name))
        here.add(path)

    def after(path: Path) -> None:
        log.append(("after", path.name))
        here.remove(path)

    run(plan, tmp_path / "output", before_read=before, after_read=after)
    assert not here
    first, last = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert sorted(log) == sorted(
        (["before", "after"][n], name) for n in (0, 1) for name in (first, last)
    )
    assert log.index(("before", first)) < log.index(("after", first))


def test_a_source_file_may_appear_and_vanish_with_its_use(source, tmp_path):
    """As with `--low-disk`: only files in use are on the disk."""
    plan = plan_of(source)
    run(plan, tmp_path / "whole")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    files = {info.file for tensor in plan.tensors for info in tensor.sources}
    for path in files:
        path.rename(hidden / path.name)
    try:
        run(
            plan,
            tmp_path / "output",
            digests={},
            before_read=lambda path: (hidden / path.name).rename(path),
            after_read=lambda path: path.rename(hidden / path.name),
        )
        assert not any(path.exists() for path in files)
    finally:
        for path in hidden.iterdir():
            path.rename(source / path.name)
    assert content(tmp_path / "output") == content(tmp_path / "whole")


def test_the_cache_limit_is_as_before(source, tmp_path):
    limit = mx.set_cache_limit(12345)
    try:
        run(plan_of(source), tmp_path / "output")
        assert mx.set_cache_limit(12345) == 12345
    finally:
        mx.set_cache_limit(limit)


def test_peak_memory_and_time_are_reported(source, tmp_path):
    result = run(plan_of(source), tmp_path / "output")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert result.peak_memory in (peak, peak * 1024)
    assert result.peak_memory > 10**7 and 0 < result.seconds < 60


# What stands in the way -----------------------------------------------------------------------


def test_a_folder_that_no_conversion_made_is_not_touched(source, tmp_path):
    foreign = tmp_path / "output.partial"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(ConversionError, match="`.*output.partial` is in the way"):
        run(plan_of(source), tmp_path / "output")
    assert content(foreign) == {"notes.txt": b"mine"}


def test_an_existing_output_is_not_touched(source, tmp_path):
    (tmp_path / "output").mkdir()
    for resume in (False, True):
        with pytest.raises(ConversionError, match="`.*output` exists already"):
            run(plan_of(source), tmp_path / "output", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


@pytest.mark.parametrize("name", [".", "..", "/", "output/.."])
def test_a_folder_by_another_name_exists_too(source, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match="exists already"):
        run(plan_of(source), Path(name))
    assert not list(tmp_path.iterdir())


def test_a_link_that_leads_nowhere_is_not_written_through(source, tmp_path):
    (tmp_path / "output").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="exists already"):
        run(plan_of(source), tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_an_output_inside_of_its_source_leaves_the_source_alone(source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    run(plan_of(copy), copy / "output")
    run(plan_of(source), tmp_path / "output")
    assert content(copy / "output") == content(tmp_path / "output")
    shutil.rmtree(copy / "output")
    assert content(copy) == content(source)


def test_a_disk_that_takes_no_file_so_large_is_named_with_the_way_out(
    source, tmp_path, monkeypatch
):
    """FAT32 stops at 4 GiB."""
    write = os.write

    def limited(descriptor, data):
        if os.fstat(descriptor).st_size > 50_000:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    with pytest.raises(ConversionError, match="larger than its disk allows") as caught:
        run(plan_of(source), tmp_path / "output")
    assert "`--max-shard-size`" in caught.value.hint
    assert f"`{tmp_path / 'output.partial'}`" in caught.value.hint


def test_a_missing_parent_folder_is_made(source, tmp_path):
    run(plan_of(source), tmp_path / "a" / "b" / "output")
    assert (tmp_path / "a" / "b" / "output" / INDEX).exists()


def test_a_full_disk_is_predicted(source, tmp_path, monkeypatch):
    plan = plan_of(source)
    usage = stream.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(stream.shutil, "disk_usage", lambda _: usage._replace(free=plan.nbytes))
    with pytest.raises(ConversionError, match=r"the output needs 0.07 GB more, .* has 0.00 GB"):
        run(plan, tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_a_folder_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConversionError, match="cannot write `.*file.*`: Not a directory"):
        run(plan_of(source), tmp_path / "file" / "output")


def test_the_other_files_are_written_before_the_output_appears(source, tmp_path):
    output = tmp_path / "output"

    def finish(folder: Path, result: object) -> None:
        assert not output.exists()
        (folder / "config.json").write_text("{}")

    run(plan_of(source), output, finish=finish)
    assert (output / "config.json").read_text() == "{}"


def test_a_shard_damaged_before_the_output_appears_is_found(source, tmp_path):
    def damage(folder: Path, result: object) -> None:
        path = min(folder.glob("*.safetensors"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")

    with pytest.raises(ConversionError, match="is not what was written"):
        run(plan_of(source), tmp_path / "output", finish=damage)
    assert not (tmp_path / "output").exists()
    run(plan_of(source), tmp_path / "output", resume=True)


@pytest.mark.parametrize(("layout", "name"), [("mlx", "mlx"), ("transformers", "pt")])
def test_files_say_whose_layout_they_have(source, tmp_path, layout, name):
    """Readers look for it: mlx-vlm renames nothing where it says `mlx`."""
    found = plan(source, RECIPES["bf16"], layout=layout)
    run(found, tmp_path / "output")
    for shard in found.shards:
        _, metadata = mx.load(str(tmp_path / "output" / shard.file), return_metadata=True)
        assert metadata == {"format": name}


def test_without_verifying_the_bytes_are_the_same(source, tmp_path):
    for verify in (False, True):
        run(plan_of(source), tmp_path / str(verify), verify=verify)
    assert content(tmp_path / "False") == content(tmp_path / "True")


def test_a_fault_of_the_writer_is_found_at_once(source, tmp_path, monkeypatch):
    """Swap the scales and biases on their way to the file: both fit, the values do not."""
    pack_right = pack
    monkeypatch.setattr(
        "mlx_diffusiongemma.convert.slices.pack",
        lambda values, how: (lambda w, s, b: (w, b, s))(*pack_right(values, how)),
    )
    with pytest.raises(ConversionError, match="further from the source than zeros"):
        run(plan_of(source), tmp_path / "output")
    assert not (tmp_path / "output").exists()
