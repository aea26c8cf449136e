"""What a conversion wrote is read back, and every kind of damage is named."""

import json
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from convert_plans import plan_of, write_source

from mlx_diffusiongemma.checkpoint import INDEX
from mlx_diffusiongemma.convert import stream
from mlx_diffusiongemma.convert.journal import hash_file
from mlx_diffusiongemma.convert.records import ConversionPlan
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.convert.verify import Sample, check_folder, check_shard
from mlx_diffusiongemma.errors import ConversionError


@pytest.fixture
def converted(tmp_path) -> tuple[ConversionPlan, Path]:
    plan = plan_of(write_source(tmp_path / "source"))
    assert len(plan.shards) >= 3
    run(plan, tmp_path / "output")
    return plan, tmp_path / "output"


def check(plan: ConversionPlan, folder: Path) -> None:
    check_folder(
        folder, plan, {shard.file: hash_file(folder / shard.file) for shard in plan.shards}
    )


def test_a_good_result_passes(converted):
    check(*converted)


def test_one_flipped_bit_is_found(converted):
    plan, folder = converted
    files = {shard.file: hash_file(folder / shard.file) for shard in plan.shards}
    path = folder / plan.shards[1].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConversionError, match=f"`.*{path.name}` is not what was written"):
        check_folder(folder, plan, files)


def test_a_cut_short_shard_is_found(converted):
    plan, folder = converted
    path = folder / plan.shards[0].file
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ConversionError, match=f"cannot be read back: `.*{path.name}` is damaged"):
        check(plan, folder)


def test_a_missing_shard_is_found(converted):
    plan, folder = converted
    (folder / plan.shards[0].file).unlink()
    with pytest.raises(ConversionError, match="cannot be read back: .*does not exist"):
        check(plan, folder)


def test_a_tensor_that_the_index_lacks_or_places_elsewhere_is_found(converted):
    plan, folder = converted
    first = plan.shards[0].tensors[0].outputs[0].name
    values = json.loads((folder / INDEX).read_text())
    values["weight_map"][first] = plan.shards[1].file
    (folder / INDEX).write_text(json.dumps(values))
    check(plan, folder)  # readers go by the headers
    values["weight_map"]["model.decoder.more"] = plan.shards[1].file
    (folder / INDEX).write_text(json.dumps(values))
    with pytest.raises(ConversionError, match="no shard holds, first `model.decoder.more`"):
        check(plan, folder)


def rewrite(path: Path, change) -> None:
    arrays = mx.load(str(path))
    mx.eval(arrays)
    change(arrays)
    mx.save_safetensors(str(path), arrays)


@pytest.mark.parametrize("kind", ["missing", "more", "shape", "dtype"])
def test_a_header_that_is_not_the_plans_is_found(converted, kind):
    plan, folder = converted
    shard = plan.shards[0]
    name = shard.tensors[0].outputs[0].name

    def change(arrays):
        if kind == "missing":
            del arrays[name]
        elif kind == "more":
            arrays["more"] = mx.zeros((1,))
        elif kind == "shape":
            arrays[name] = arrays[name][None]
        else:
            arrays[name] = arrays[name].astype(mx.float32)

    rewrite(folder / shard.file, change)
    named = "more" if kind == "more" else name
    with pytest.raises(ConversionError, match=f"under the name `{named}`"):
        check_shard(folder / shard.file, shard, ())
    with pytest.raises(ConversionError, match=named):
        check(plan, folder)


def sample_of(plan: ConversionPlan, folder: Path, *, row: int = 0) -> tuple[Sample, Path]:
    """A true sample of a packed tensor, taken from the file."""
    shard, tensor = next(
        (shard, tensor)
        for shard in plan.shards
        for tensor in shard.tensors
        if tensor.quantization and tensor.quantization.bits == 8
    )
    arrays = mx.load(str(folder / shard.file))
    rows = [
        arrays[output.name].reshape(-1, output.shape[-1])[row : row + 1]
        for output in tensor.outputs
    ]
    source = mx.dequantize(*rows, group_size=64, bits=8).astype(mx.float32)
    written = [
        np.array(part.view(mx.uint16) if part.dtype == mx.bfloat16 else part) for part in rows
    ]
    return Sample(tensor, row, tuple(written), np.array(source)), folder / shard.file


def check_sample(plan: ConversionPlan, path: Path, sample: Sample) -> None:
    (shard,) = [shard for shard in plan.shards if shard.file == path.name]
    check_shard(path, shard, [sample])


def test_every_tensor_is_sampled(tmp_path, monkeypatch):
    seen: dict[str, Sample] = {}
    monkeypatch.setattr(
        stream,
        "check_shard",
        lambda path, shard, samples: seen.update({s.tensor.parameter: s for s in samples}),
    )
    plan = plan_of(write_source(tmp_path / "source"))
    run(plan, tmp_path / "output")
    assert set(seen) == {tensor.parameter for tensor in plan.tensors}
    for sample in seen.values():
        assert (sample.source is None) == (sample.tensor.action == "copy")
        assert len(sample.written) == len(sample.tensor.outputs)


def test_a_true_row_passes(converted):
    plan, folder = converted
    sample, path = sample_of(plan, folder, row=3)
    check_sample(plan, path, sample)


def test_a_row_at_another_place_is_found(converted):
    plan, folder = converted
    sample, path = sample_of(plan, folder, row=3)
    moved = Sample(sample.tensor, 4, sample.written, sample.source)
    with pytest.raises(
        ConversionError, match="row 4 of `.*weight` in `.*` is not what was written"
    ):
        check_sample(plan, path, moved)


def test_a_row_worse_than_zeros_is_found(converted):
    plan, folder = converted
    sample, path = sample_of(plan, folder)
    wrong = Sample(sample.tensor, 0, sample.written, -sample.source)
    with pytest.raises(ConversionError, match="further from the source than zeros"):
        check_sample(plan, path, wrong)
