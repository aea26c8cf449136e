"""Small sources and plans for the tests of the converter's streaming half."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny

from mlx_diffusiongemma.checkpoint import TensorInfo, read_tensors
from mlx_diffusiongemma.convert import stream
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.convert.records import ConversionPlan, OutputTensor, ShardPlan, TensorPlan
from mlx_diffusiongemma.convert.slices import slices
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES

SHARD_BYTES = 120_000  # cuts the tiny checkpoint into several shards
_NAMES = {
    mx.bfloat16: "BF16",
    mx.float16: "F16",
    mx.float32: "F32",
    mx.uint32: "U32",
    mx.uint8: "U8",
}


def write_tensors(path: Path, arrays: Mapping[str, mx.array]) -> dict[str, TensorInfo]:
    """Write a safetensors file with MLX and describe its tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path), dict(arrays))
    return {
        name: TensorInfo(name, path, array.shape, _NAMES[array.dtype])
        for name, array in arrays.items()
    }


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    """Normal values that bfloat16 holds exactly."""
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return mx.array(values).astype(mx.bfloat16).astype(dtype)


def bits(array: mx.array) -> bytes:
    """The bytes a file holds for an array."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array).tobytes()


def write_source(folder: Path, **changes: object) -> Path:
    """A tiny checkpoint in two shards with the released names."""
    values = tiny.config_values(**changes)
    arrays = tiny.random_tensors(values)
    names = sorted(arrays)
    half = len(names) // 2
    parts = ({name: arrays[name] for name in part} for part in (names[:half], names[half:]))
    return tiny.write_checkpoint(folder, values, *parts)


def plan_of(
    source: Path, recipe: str = "mixed-4-8", *, shard_bytes: int = SHARD_BYTES
) -> ConversionPlan:
    """The plan for a tiny checkpoint, in several shards."""
    return plan(source, RECIPES[recipe], max_shard_bytes=shard_bytes)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def load(folder: Path) -> dict[str, mx.array]:
    """All tensors of a folder, as MLX reads them."""
    return {
        name: array
        for path in {info.file for info in read_tensors(folder).values()}
        for name, array in mx.load(str(path)).items()
    }


def packed_plan(info: TensorInfo, how: Quantization | None, dtype: str = "bfloat16") -> TensorPlan:
    """Pack (or cast) one unpacked source tensor."""
    name = {"bfloat16": "BF16", "float16": "F16"}[dtype]
    if how is None:
        nbytes = info.size * 2
        outputs = [OutputTensor(info.name, name, info.shape, nbytes)]
    else:
        path = info.name.removesuffix(".weight")
        width, groups = info.shape[-1] * how.bits // 32, info.shape[-1] // how.group_size
        shapes = [
            ("weight", "U32", width, 4),
            ("scales", name if how.has_biases else "U8", groups, 2),
        ]
        shapes += [("biases", name, groups, 2)] if how.has_biases else []
        rows = info.size // info.shape[-1]
        outputs = [
            OutputTensor(
                f"{path}.{leaf}",
                kind,
                (*info.shape[:-1], last),
                rows * last * (1 if kind == "U8" else item),
            )
            for leaf, kind, last, item in shapes
        ]
    action = "quantize" if how else "cast"
    return TensorPlan(info.name, (info,), None, action, how, dtype, tuple(outputs), "experts")


def in_small_slices(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(stream, "slices", functools.partial(slices, slice_bytes=slice_bytes))


def hand_made(folder: Path, *tensors: TensorPlan, search: bool = False) -> ConversionPlan:
    """A plan of one shard with these tensors."""
    recipe = RECIPES["mixed-4-8"]
    if search:
        recipe = replace(recipe, search=True)
    shard = ShardPlan("model.safetensors", tensors)
    return ConversionPlan(folder, recipe, (shard,), (), {}, (), (), "mlx", "hand-made")
