"""What a conversion will do, decided from headers alone: every source tensor, every output byte.

    read_tensors -> plan_tensors -> group packed parts -> how each is written -> shards, config

Nothing here reads a tensor's values. `stream.run` carries a plan out.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mlx_diffusiongemma.checkpoint import (
    TensorInfo,
    plan_tensors,
    read_tensors,
    repeated_parameter,
)
from mlx_diffusiongemma.checkpoint import TensorPlan as SourcePlan
from mlx_diffusiongemma.config import parse_config, read_json
from mlx_diffusiongemma.convert.config_file import output_config
from mlx_diffusiongemma.convert.folder import copied_files, missing_files
from mlx_diffusiongemma.convert.parts import SourceParameter, packed_shapes, source_parameters
from mlx_diffusiongemma.convert.records import (
    Action,
    ConversionPlan,
    Layout,
    OutputTensor,
    Repeat,
    ShardPlan,
    Skipped,
    TensorPlan,
)
from mlx_diffusiongemma.errors import CheckpointError, ConfigError
from mlx_diffusiongemma.recipes import PACKABLE_CLASSES, Recipe, matches, tensor_class

MAX_SHARD_BYTES = 5 * 10**9
FORMAT = 1  # raised when the same plan would write other bytes than before
DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # safetensors' spelling
_MIN_WIDTH = 32  # MLX packs rows of a multiple of this many values, whatever the group size
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4, "U8": 1}


def plan(
    source: Path,
    recipe: Recipe,
    *,
    keep_vision: bool = True,
    allow_unknown: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    layout: Layout = "mlx",
) -> ConversionPlan:
    """Decide what converting the checkpoint in `source` writes; reads headers only.

    CheckpointError when the source is no whole checkpoint, or has tensors nobody knows and
    `allow_unknown` is not set; ConfigError when the recipe does not fit the model.
    """
    if max_shard_bytes < 1:
        raise ConfigError(f"the largest shard is {max_shard_bytes} bytes", hint="such as 5GB")
    values = read_json(source / "config.json")
    model = parse_config(values)
    found = plan_tensors(read_tensors(source))
    parameters, unknown = source_parameters(model, found.used)
    unknown += found.unknown
    if unknown and not allow_unknown:
        first = unknown[0]
        raise CheckpointError(
            f"{len(unknown)} tensors of the source are unknown, first `{first.name}` in "
            f"{first.file.name}",
            hint="`--allow-unknown` leaves them out and says so",
        )
    _check_recipe(recipe, parameters)
    repeats = _repeats(found)
    tensors = [_text_tensor(parameter, recipe, layout, repeats) for parameter in parameters]
    vision = found.left_out.get("vision", ())
    if keep_vision:
        tensors += map(_kept, vision)
    tensors.sort(key=lambda tensor: _order(tensor.parameter))
    packed = {
        _module(tensor.parameter): (tensor.quantization, tensor.nbytes)
        for tensor in tensors
        if tensor.quantization
    }
    config = output_config(
        values, model, dtype=recipe.dtype, packed=packed, keep_vision=keep_vision or not vision
    )
    found_plan = ConversionPlan(
        source=source,
        recipe=recipe,
        shards=_shards(tensors, max_shard_bytes),
        skipped=_skipped(found.left_out, unknown, keep_vision, repeats),
        config=config,
        copied=copied_files(source),
        missing=missing_files(source, has_images=bool(config.get("vision_config")), layout=layout),
        layout=layout,
    )
    return replace(found_plan, fingerprint=_fingerprint(found_plan))


def _repeats(found: SourcePlan) -> dict[str, list[Repeat]]:
    """Copies whose numbers can be held against their original's, by the name of that."""
    repeats: dict[str, list[Repeat]] = {}
    for copy in found.left_out.get("tied", ()):
        original = found.used.get(repeated_parameter(copy.name) or "")
        if original is None or original.shape != copy.shape:
            continue
        if original.dtype == copy.dtype or (original.is_float and copy.is_float):
            repeats.setdefault(original.name, []).append(Repeat(original, copy))
    return repeats


def _skipped(
    left_out: Mapping[str, tuple[TensorInfo, ...]],
    unknown: list[TensorInfo],
    keep_vision: bool,
    repeats: Mapping[str, list[Repeat]],
) -> tuple[Skipped, ...]:
    tied = left_out.get("tied", ())
    compared = {repeat.copy for copies in repeats.values() for repeat in copies}
    reasons = {
        "repeats a tensor of the decoder": [info for info in tied if info in compared],
        "repeats a tensor of the decoder that is packed otherwise; not compared": [
            info for info in tied if info not in compared
        ],
        "is computed anew": left_out.get("derived", ()),
        "is of the image side": () if keep_vision else left_out.get("vision", ()),
        "is unknown": unknown,
    }
    return tuple(Skipped(info, why) for why, infos in reasons.items() for info in infos)


def _module(parameter: str) -> str:
    return parameter.removesuffix(".weight")


def _check_recipe(recipe: Recipe, parameters: Iterable[SourceParameter]) -> None:
    """ConfigError when groups do not divide a width, or when an override means nothing."""
    paths = []
    problems: dict[tuple[int, int], list[str]] = {}  # (width, group size) -> modules
    for parameter in parameters:
        if not _can_pack(parameter):
            continue
        path, width = _module(parameter.name), parameter.shape[-1]
        paths.append(path)
        how = recipe.for_module(path)
        if how and width % max(how.group_size, _MIN_WIDTH):
            problems.setdefault((width, how.group_size), []).append(path)
    if problems:
        shown = (
            f"`{modules[0]}`{f' and {len(modules) - 1} more' if modules[1:] else ''} with rows of "
            f"{width} values by groups of {group_size}"
            for (width, group_size), modules in problems.items()
        )
        raise ConfigError(
            f"these cannot be divided: {'; '.join(shown)}",
            hint="use groups of 64 or 32, for all or with `--set 'PATTERN=BITS:GROUP'`",
        )
    _check_overrides(recipe, paths)


def _check_overrides(recipe: Recipe, paths: list[str]) -> None:
    """ConfigError when a pattern matches no matrix, or none that earlier patterns leave to it."""
    left = set(paths)
    for pattern, _ in recipe.overrides:
        found = {path for path in paths if matches(pattern, path)}
        if found and not found & left:
            raise ConfigError(
                f"{pattern!r} decides nothing: patterns before it match all that it does",
                hint="the first pattern that matches a module wins; put this one first",
            )
        left -= found
        if not found:
            raise ConfigError(
                f"no module that can be quantised matches {pattern!r}",
                hint=f"name a class ({', '.join(PACKABLE_CLASSES)}) or a path such as "
                f"`{paths[-1]}`, in which * stands for anything",
            )


def _can_pack(parameter: SourceParameter) -> bool:
    """Matrices are packed; norms, scales and scalars are not."""
    return (
        parameter.name.endswith(".weight")
        and len(parameter.shape) > 1
        and tensor_class(parameter.name) in PACKABLE_CLASSES
    )


def _text_tensor(
    parameter: SourceParameter, recipe: Recipe, layout: Layout, repeats: Mapping[str, list[Repeat]]
) -> TensorPlan:
    how = recipe.for_module(_module(parameter.name)) if _can_pack(parameter) else None
    name, dtype = parameter.name, DTYPE_NAMES[recipe.dtype]
    if layout == "transformers" and ".experts." in name:
        name = _module(name)  # the released files have no `.weight` there
    action: Action = "quantize" if how else "cast"
    if how and how == parameter.quantization:
        action = "copy"  # it is packed this way already; unpacking it would only lose
        names = (f"{_module(name)}.{part}" for part in ("weight", "scales", "biases"))
        outputs = [_same(info, name) for info, name in zip(parameter.sources, names, strict=False)]
    elif how:
        path = _module(name)
        packed_shape, group_shape = packed_shapes(parameter.shape, how)
        outputs = [_output(name, "U32", packed_shape)]
        outputs.append(_output(f"{path}.scales", dtype if how.has_biases else "U8", group_shape))
        if how.has_biases:
            outputs.append(_output(f"{path}.biases", dtype, group_shape))
    else:
        outputs = [_output(name, dtype, parameter.shape)]
        if parameter.quantization is None and parameter.sources[0].dtype == dtype:
            action = "copy"
    return TensorPlan(
        parameter=parameter.name,
        sources=parameter.sources,
        source_quantization=parameter.quantization,
        action=action,
        quantization=how,
        dtype=recipe.dtype,
        outputs=tuple(outputs),
        tensor_class=tensor_class(parameter.name),
        repeats=tuple(
            repeat for info in parameter.sources for repeat in repeats.get(info.name, ())
        ),
    )


def _kept(info: TensorInfo) -> TensorPlan:
    """A vision tensor: kept as it is, whatever it is."""
    return TensorPlan(
        parameter=info.name,
        sources=(info,),
        source_quantization=None,
        action="copy",
        quantization=None,
        dtype=info.dtype,
        outputs=(_same(info, info.name),),
        tensor_class="vision",
    )


def _same(info: TensorInfo, name: str) -> OutputTensor:
    return OutputTensor(name, info.dtype, info.shape, info.nbytes)


def _output(name: str, dtype: str, shape: tuple[int, ...]) -> OutputTensor:
    nbytes = ITEM_BYTES[dtype]
    for dim in shape:
        nbytes *= dim
    return OutputTensor(name, dtype, shape, nbytes)


def _order(name: str) -> tuple[bool, int, str, str]:
    """Text before vision; the embedding, then layer by layer with its scalar of either role."""
    layer = re.search(r"\.layers\.(\d+)\.(.+)", name)
    if layer:
        return tensor_class(name) == "vision", int(layer[1]), layer[2], name
    last = -1 if tensor_class(name) == "embedding" else sys.maxsize
    return tensor_class(name) == "vision", last, name, name


def _shards(tensors: Iterable[TensorPlan], max_bytes: int) -> tuple[ShardPlan, ...]:
    """Files of at most `max_bytes`, except where one tensor is larger."""
    pieces: list[list[TensorPlan]] = [[]]
    nbytes = 0
    for tensor in tensors:
        if pieces[-1] and nbytes + tensor.nbytes > max_bytes:
            pieces.append([])
            nbytes = 0
        pieces[-1].append(tensor)
        nbytes += tensor.nbytes
    if len(pieces) == 1:
        return (ShardPlan("model.safetensors", tuple(pieces[0])),)
    return tuple(
        ShardPlan(f"model-{number:05}-of-{len(pieces):05}.safetensors", tuple(piece))
        for number, piece in enumerate(pieces, 1)
    )


def _fingerprint(found: ConversionPlan) -> str:
    """A hash of what decides the output's bytes, but for the numbers in the source."""
    shards = [(shard.file, [_facts(tensor) for tensor in shard.tensors]) for shard in found.shards]
    facts = (FORMAT, found.recipe.search, found.layout, shards, found.config)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _facts(tensor: TensorPlan) -> dict[str, Any]:
    values = asdict(tensor)
    values["sources"] = [(info.file.name, info.name, info.dtype) for info in tensor.sources]
    values["repeats"] = [(repeat.copy.file.name, repeat.copy.name) for repeat in tensor.repeats]
    return values
