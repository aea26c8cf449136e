"""Load a checkpoint into the model, strictly: every tensor used once, nothing left random."""

import logging
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlx_diffusiongemma.checkpoint import TensorInfo, TensorPlan, plan_tensors, read_tensors
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.model import DiffusionGemma

_log = logging.getLogger(__name__)
_FLOATS = ("BF16", "F16", "F32")
_SHOWN = 5  # problems listed in one error


def load_weights(config: ModelConfig, folder: Path, dtype: mx.Dtype) -> DiffusionGemma:
    """Build the model of `config` from the safetensors files of `folder`.

    Floating-point tensors, scales and biases become `dtype`, once; packed weights stay packed.
    CheckpointError lists what is missing, unknown, of the wrong shape or of the wrong dtype.
    """
    plan = plan_tensors(read_tensors(folder))
    model = DiffusionGemma(config)
    quantized = _quantized_modules(config, plan)
    nn.quantize(model, class_predicate=lambda path, _: quantized.get(path, False))
    expected = dict(tree_flatten(model.parameters()))
    _check(plan, expected, quantized, folder)
    for why, tensors in plan.left_out.items():
        _log.info("left out %d %s tensors of `%s`", len(tensors), why, folder)
    by_file: dict[Path, dict[str, str]] = {}
    for parameter, info in plan.used.items():
        by_file.setdefault(info.file, {})[info.name] = parameter
    for file, names in by_file.items():
        arrays = mx.load(str(file))
        assert isinstance(arrays, dict)
        cast = [(names[name], _cast(arrays[name], dtype)) for name in names]
        del arrays
        model.load_weights(cast, strict=False)
        mx.eval([array for _, array in cast])
    model.eval()
    return model


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array


def _quantized_modules(config: ModelConfig, plan: TensorPlan) -> dict[str, dict]:
    """Module path -> arguments of `to_quantized`, for every module with scales in the file."""
    modules: dict[str, dict] = {}
    for parameter in plan.used:
        path, _, leaf = parameter.rpartition(".")
        if leaf != "scales":
            continue
        how = config.quantization.for_module(path)
        if how is None:
            raise CheckpointError(
                f"`{path}` is quantised, but config.json does not say how",
                hint="config.json needs a `quantization` table that covers it",
            )
        modules[path] = {"group_size": how.group_size, "bits": how.bits, "mode": how.mode}
    return modules


def _check(
    plan: TensorPlan,
    expected: Mapping[str, mx.array],
    quantized: Mapping[str, dict],
    folder: Path,
) -> None:
    problems = [f"missing `{name}`" for name in expected if name not in plan.used]
    problems += [f"unknown `{info.name}`" for info in plan.unknown]
    problems += [
        f"unknown `{info.name}`" for name, info in plan.used.items() if name not in expected
    ]
    for name, array in expected.items():
        if info := plan.used.get(name):
            problems += _mismatches(info, array, quantized.get(name.rpartition(".")[0]))
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError(
            f"`{folder}` does not fit its config.json: {'; '.join(problems[:_SHOWN])}{more}",
            hint="is this a whole DiffusionGemma checkpoint with its own config.json?",
        )


def _mismatches(info: TensorInfo, array: mx.array, quantized: Mapping | None) -> list[str]:
    problems = []
    if info.shape != array.shape:
        problems.append(f"`{info.name}` has shape {list(info.shape)}, not {list(array.shape)}")
    allowed = _FLOATS
    if quantized is not None and array.dtype == mx.uint32:
        allowed = ("U32",)
    elif quantized is not None and array.dtype == mx.uint8:
        allowed = ("U8",)
    if info.dtype not in allowed:
        problems.append(f"`{info.name}` has dtype {info.dtype}, not {' or '.join(allowed)}")
    return problems
