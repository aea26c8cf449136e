"""Load a checkpoint into the model, strictly: every tensor used once, nothing left random."""

import logging
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlx_diffusiongemma.checkpoint import (
    TensorInfo,
    TensorPlan,
    plan_tensors,
    read_tensors,
    repeated_parameter,
)
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.device import on_cpu
from mlx_diffusiongemma.errors import CheckpointError, ConfigError
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.experts import ExpertLinear
from mlx_diffusiongemma.model.layers import Linear
from mlx_diffusiongemma.quantization import Quantization

_log = logging.getLogger(__name__)
_PACKABLE = (nn.Linear, nn.Embedding, ExpertLinear)
_SHOWN = 5  # problems listed in one error
_SLICE_BYTES = 256 << 20  # of a file that are read and cast at a time


def load_weights(config: ModelConfig, folder: Path, dtype: mx.Dtype) -> DiffusionGemma:
    """Build the model of `config` from the safetensors files of `folder`.

    Floating-point tensors, scales and biases become `dtype`, once; packed weights stay packed.
    Beside the model itself this takes the memory of one slice of a file, or of its largest tensor.

    CheckpointError lists what is missing, unknown, of the wrong shape or of the wrong dtype;
    ConfigError when this device cannot compute the model in `dtype`.
    """
    plan = plan_tensors(read_tensors(folder))
    model = DiffusionGemma(config)
    packed, flawed = _packed_modules(config, plan, model)
    nn.quantize(model, class_predicate=lambda path, _: packed.get(path, False))
    expected = dict(tree_flatten(model.parameters()))
    problems = [*flawed.values(), *_differences(plan, expected, without=flawed)]
    if problems:
        raise CheckpointError(
            f"`{folder}` does not fit its config.json: {_first_of(problems)}",
            hint="is this a whole DiffusionGemma checkpoint with its own config.json?",
        )
    _check_dtype(model, dtype)
    _check_repeats(plan, dtype)
    for why, tensors in plan.left_out.items():
        _log.info("left out %d %s tensors of `%s`", len(tensors), why, folder)
    for file, parameters in _slices(plan):
        _fill(model, file, parameters, dtype)
    if on_cpu():
        for module in model.modules():
            if isinstance(module, Linear):
                module.store_transposed()
                mx.eval(module.weight)
    model.eval()
    return model


def _fill(model: DiffusionGemma, file: Path, parameters: dict[str, str], dtype: mx.Dtype) -> None:
    """Read tensors of one file into the model; `parameters` says which, as `_slices` does."""
    arrays = mx.load(str(file))
    assert isinstance(arrays, dict)
    cast = [(parameter, _cast(arrays[name], dtype)) for parameter, name in parameters.items()]
    del arrays
    mx.eval([array for _, array in cast])
    model.load_weights(cast, strict=False)


def _check_repeats(plan: TensorPlan, dtype: mx.Dtype) -> None:
    """Raise CheckpointError where a tensor that should repeat another holds other numbers.

    transformers then takes both as they are, and its model is not the one that is loaded here. A
    repeat that is packed otherwise cannot be compared.
    """
    repeats = {info.name: info for info in plan.left_out.get("tied", ())}
    originals = {name: plan.used.get(repeated_parameter(name) or "") for name in repeats}
    for name, info in repeats.items():
        module, original = name.rpartition(".")[0], originals[name]
        packing = [f"{module}.{leaf}" for leaf in ("scales", "biases")]
        if not info.is_float and packing[0] not in repeats:
            raise CheckpointError(
                f"`{name}` of `{info.file.name}` has dtype {info.dtype}, and no scales",
                hint="fetch this file again",
            )
        layouts = [
            [(one.shape, one.is_float or one.dtype) for one in map(of.get, [name, *packing]) if one]
            for of in (repeats, originals)
        ]
        if original is None or layouts[0] != layouts[1]:
            continue
        if not mx.array_equal(
            _cast(_read(info), dtype), _cast(_read(original), dtype), equal_nan=True
        ):
            raise CheckpointError(
                f"`{name}` should repeat `{original.name}`, and holds other numbers",
                hint="this runtime reads checkpoints in which the two are the same; was one of "
                "them trained apart?",
            )


def _read(info: TensorInfo) -> mx.array:
    arrays = mx.load(str(info.file))
    assert isinstance(arrays, dict)
    return arrays[info.name]


def _slices(plan: TensorPlan) -> Iterator[tuple[Path, dict[str, str]]]:
    """Files, in pieces: (file, parameter name -> tensor name)."""
    by_file: dict[Path, list[tuple[str, TensorInfo]]] = {}
    for parameter, info in plan.used.items():
        by_file.setdefault(info.file, []).append((parameter, info))
    for file, tensors in by_file.items():
        piece: dict[str, str] = {}
        nbytes = 0
        for parameter, info in tensors:
            if piece and nbytes + info.nbytes > _SLICE_BYTES:
                yield file, piece
                piece, nbytes = {}, 0
            piece[parameter] = info.name
            nbytes += info.nbytes
        yield file, piece


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array


def _check_dtype(model: DiffusionGemma, dtype: mx.Dtype) -> None:
    """MLX's CPU back-end multiplies by dense experts (`mx.gather_mm`) in float32 only."""
    is_dense = any(isinstance(module, ExpertLinear) for module in model.modules())
    if is_dense and on_cpu() and dtype != mx.float32:
        name = str(dtype).removeprefix("mlx.core.")
        raise ConfigError(
            f"dtype is {name!r}, and MLX has no product with unquantised experts in it on the CPU",
            hint="use `--dtype float32`, or a quantised checkpoint",
        )


def _packed_modules(
    config: ModelConfig, plan: TensorPlan, model: DiffusionGemma
) -> tuple[dict[str, dict], dict[str, str]]:
    """The modules with scales in the file.

    Returns module path -> arguments of `to_quantized`, and module path -> what is wrong for those
    that are not packed as config.json says.
    """
    packed: dict[str, dict] = {}
    flawed: dict[str, str] = {}
    unexplained = []
    modules = dict(model.named_modules())
    for parameter in plan.used:
        path, _, leaf = parameter.rpartition(".")
        module = modules.get(path)
        if leaf != "scales" or not isinstance(module, _PACKABLE):
            continue
        how = config.quantization.for_module(path)
        if how is None:
            unexplained.append(f"`{path}`")
        elif problem := _packing_problem(path, module.weight.shape, how, plan):
            flawed[path] = problem
        else:
            packed[path] = {"group_size": how.group_size, "bits": how.bits, "mode": how.mode}
    if unexplained:
        raise CheckpointError(
            f"config.json does not say how these are quantised: {_first_of(unexplained)}",
            hint="it needs a `quantization` table that covers every module with scales",
        )
    return packed, flawed


def _packing_problem(
    path: str, shape: tuple[int, ...], how: Quantization, plan: TensorPlan
) -> str | None:
    """What is wrong with the packed tensors of a weight of `shape`; a missing one is not."""
    *rows, columns = shape
    if columns % how.group_size:
        return f"`{path}` has rows of {columns} values, which no groups of {how.group_size} fill"
    groups = (*rows, columns // how.group_size)
    expected = {"weight": (*rows, columns * how.bits // 32), "scales": groups}
    if how.has_biases:
        expected["biases"] = groups
    parts = {leaf: plan.used.get(f"{path}.{leaf}") for leaf in ("weight", "scales", "biases")}
    shapes = {leaf: info.shape for leaf, info in parts.items() if info is not None}
    fits = all(expected.get(leaf) == shape for leaf, shape in shapes.items())
    if fits and plan.used[f"{path}.scales"].is_float == how.has_biases:
        return None
    told = ", ".join(
        f"{info.dtype} {leaf} {list(info.shape)}" for leaf, info in parts.items() if info
    )
    return f"`{path}` has {told}, which is not {how}"


def _differences(
    plan: TensorPlan, expected: Mapping[str, mx.array], *, without: Container[str]
) -> list[str]:
    """Where the tensors of the files differ from the parameters, but for some modules."""
    problems = [f"missing `{name}`" for name in expected if name not in plan.used]
    unknown = [info.name for info in plan.unknown]
    for name, info in plan.used.items():
        if name.rpartition(".")[0] in without:
            continue
        if name in expected:
            problems += _mismatches(info, expected[name])
        else:
            unknown.append(info.name)
    return problems + [f"unknown `{name}`" for name in unknown]


def _mismatches(info: TensorInfo, array: mx.array) -> Iterator[str]:
    if info.shape != array.shape:
        yield f"`{info.name}` has shape {list(info.shape)}, not {list(array.shape)}"
    packed = {mx.uint32: "U32", mx.uint8: "U8"}.get(array.dtype)
    if packed and info.dtype != packed:
        yield f"`{info.name}` has dtype {info.dtype}, not {packed}"
    if not packed and not info.is_float:
        yield f"`{info.name}` has dtype {info.dtype}, not BF16, F16 or F32"


def _first_of(problems: list[str]) -> str:
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
