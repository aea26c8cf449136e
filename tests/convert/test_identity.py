"""A resumed conversion must not go on with another source: what notices that it is another."""

import json
import shutil

import pytest
from convert_plans import SHARD_BYTES, content, plan_of

from mlx_diffusiongemma.checkpoint import read_tensors
from mlx_diffusiongemma.convert.identity import source_digests
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.errors import ConversionError
from mlx_diffusiongemma.recipes import RECIPES

NORM = "model.decoder.norm.weight"
EXPERTS = "model.decoder.layers.1.experts.down_proj"


@pytest.fixture
def source(write, tensors):
    names = sorted(tensors)
    half = len(names) // 2
    return write(*({name: tensors[name] for name in part} for part in (names[:half], names[half:])))


@pytest.fixture
def interrupted(source, tmp_path):
    """The output of a conversion that stopped in the middle."""

    def stop(progress):
        if progress.done_bytes >= 0.6 * progress.total_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan_of(source), tmp_path / "output", progress=stop)
    return tmp_path / "output"


def flip(source, name, place):
    """Flip a bit of the first (0) or last (-1) value of a tensor; returns the name of its file."""
    info = read_tensors(source)[name]
    data = bytearray(info.file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    data[8 + length + (begin if place == 0 else end - 2)] ^= 1
    info.file.write_bytes(data)
    return info.file.name


@pytest.mark.parametrize("name", [NORM, EXPERTS])
def test_a_source_that_was_trained_on_meanwhile_is_named(source, interrupted, name):
    file = flip(source, name, 0)
    working = interrupted.with_name("output.partial")
    before = content(working / "result")
    with pytest.raises(ConversionError, match=f"the source changed: `{file}`") as caught:
        run(plan_of(source), interrupted, resume=True)
    assert "to start again" in caught.value.hint and str(working) in str(caught.value)
    assert content(working / "result") == before and not interrupted.exists()


def test_a_source_that_was_moved_or_touched_is_the_same(source, interrupted, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)  # other folder, other times
    run(plan_of(moved), interrupted, resume=True)
    run(plan_of(source), tmp_path / "whole")
    assert content(interrupted) == content(tmp_path / "whole")


def test_digests_see_the_end_of_every_tensor_and_every_file(source):
    before = source_digests(plan_of(source))
    assert set(before) == {path.name for path in source.glob("*.safetensors")}

    file = flip(source, EXPERTS, -1)
    after = source_digests(plan_of(source))
    assert [name for name in before if before[name] != after[name]] == [file]


def test_files_of_copies_count(write, tensors):
    head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"]}
    source = write(tensors, head)
    found = plan(source, RECIPES["8bit"], max_shard_bytes=SHARD_BYTES)
    assert len(source_digests(found)) == 2


def test_what_the_hub_calls_the_files_is_taken_as_it_is(source, tmp_path):
    """A file that is not here yet has no content to sample."""

    def stop(progress):
        if progress.done_bytes >= 0.6 * progress.total_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan_of(source), tmp_path / "output", digests={"a": "1", "b": "2"}, progress=stop)
    with pytest.raises(ConversionError, match="`b` is not the file"):
        run(plan_of(source), tmp_path / "output", digests={"a": "1", "b": "3"}, resume=True)
    run(plan_of(source), tmp_path / "output", digests={"a": "1", "b": "2"}, resume=True)
    assert (tmp_path / "output").exists()
