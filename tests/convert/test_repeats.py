"""Tied copies in a source: held against their original while it is read, then left out."""

import mlx.core as mx
import pytest
import tiny
from convert_plans import SHARD_BYTES, content

from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES

EMBEDDING = "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
EXPERTS = "layers.1.experts.down_proj"
FOUR = Quantization(4, 64)


def convert(source, output, recipe="mixed-4-8"):
    return run(plan(source, RECIPES[recipe], max_shard_bytes=SHARD_BYTES), output)


def changed(array):
    """Other numbers in the very last row."""
    rows = array.reshape(-1, array.shape[-1])
    last = rows[-1:] + mx.array(1, array.dtype)
    return mx.concatenate([rows[:-1], last]).reshape(array.shape)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_copies_of_the_same_numbers_are_left_out(write, tensors, tmp_path, dtype):
    copy = {HEAD: tensors[EMBEDDING].astype(dtype)}
    convert(write(tensors, name="plain"), tmp_path / "one")
    convert(write(tensors | copy, name="tied"), tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
@pytest.mark.parametrize(
    ("original", "copy"),
    [
        (EMBEDDING, HEAD),
        (EMBEDDING, "model.encoder.language_model.embed_tokens.weight"),
        (f"model.decoder.{EXPERTS}", f"model.encoder.language_model.{EXPERTS}"),
    ],
)
def test_a_copy_with_other_numbers_stops_the_run(write, tensors, tmp_path, original, copy, dtype):
    source = write(tensors, {copy: changed(tensors[original]).astype(dtype)})
    with pytest.raises(CheckpointError) as caught:
        convert(source, tmp_path / "out")
    message = str(caught.value)
    assert f"`{original}`" in message and f"`{copy}`" in message and "other numbers" in message
    assert "model-00001-of-00002" in message and "model-00002-of-00002" in message
    assert not (tmp_path / "out").exists()


def test_a_copied_original_is_held_against_its_copy_too(write, tensors, tmp_path):
    """With `bf16` nothing is packed or cast: bytes go through."""
    source = write(tensors | {HEAD: changed(tensors[EMBEDDING])})
    with pytest.raises(CheckpointError, match="other numbers"):
        convert(source, tmp_path / "out", "bf16")


def test_zeros_of_either_sign_are_the_same_number(write, tensors, tmp_path):
    plus = tensors | {EMBEDDING: mx.zeros_like(tensors[EMBEDDING])}
    convert(write(plus | {HEAD: -plus[EMBEDDING]}), tmp_path / "out", "bf16")


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_packed_copies_are_compared_part_by_part(write, tensors, tmp_path, part):
    packed, _ = tiny.pack(tensors, lambda path: FOUR)
    names = {f"model.decoder.embed_tokens.{leaf}" for leaf in ("weight", "scales", "biases")}
    tied = {name.replace("model.decoder.embed_tokens", "lm_head"): packed[name] for name in names}
    same = write(packed | tied, name="same", quantization=tiny.table(FOUR))
    convert(same, tmp_path / "same-out")
    tied[f"lm_head.{part}"] = changed(tied[f"lm_head.{part}"])
    other = write(packed | tied, name="other", quantization=tiny.table(FOUR))
    with pytest.raises(CheckpointError, match=f"`lm_head.{part}`.*other numbers"):
        convert(other, tmp_path / "out")


def test_a_copy_that_is_packed_otherwise_is_left_out_and_the_plan_says_so(write, tensors, tmp_path):
    head, _ = tiny.pack({EMBEDDING: tensors[EMBEDDING]}, lambda path: FOUR)
    tied = {name.replace("model.decoder.embed_tokens", "lm_head"): a for name, a in head.items()}
    found = plan(write(tensors | tied, quantization=tiny.table(FOUR)), RECIPES["8bit"])
    assert {(skipped.info.name, "not compared" in skipped.reason) for skipped in found.skipped} == {
        (f"lm_head.{leaf}", True) for leaf in ("weight", "scales", "biases")
    }
    run(found, tmp_path / "out")


def test_files_of_copies_are_asked_for_and_given_back(write, tensors, tmp_path):
    """So that `--low-disk` has them while they are compared."""
    source = write(tensors, {HEAD: tensors[EMBEDDING]})
    found = plan(source, RECIPES["mixed-4-8"], max_shard_bytes=SHARD_BYTES)
    asked, given = [], []
    run(found, tmp_path / "out", before_read=asked.append, after_read=given.append)
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert sorted(path.name for path in asked) == names
    assert sorted(path.name for path in given) == names
    assert given[0].name == names[1]  # needed for the embedding alone
