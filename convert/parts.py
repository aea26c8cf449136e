"""The parameters of a source checkpoint, each with its parts, held against the model's shapes.

A packed weight lies in the files as weight, scales and, in affine mode, biases. Here the three are
one parameter with the shape it has in the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlx.utils import tree_flatten

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.quantization import Quantization

_SHOWN = 3  # problems listed in one error
_PARTS = ("weight", "scales", "biases")


@dataclass(frozen=True)
class SourceParameter:
    """One parameter of the source.

    Attributes:
        name: of the parameter in the model.
        shape: in the model.
        sources: the tensor; of a packed one weight, scales and, in affine mode, biases.
        quantization: how it is packed; None when it is not.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[TensorInfo, ...]
    quantization: Quantization | None


def source_parameters(
    config: ModelConfig, used: Mapping[str, TensorInfo]
) -> tuple[list[SourceParameter], list[TensorInfo]]:
    """The parameters that `used` fills, and the tensors among `used` that the model has not.

    CheckpointError lists parameters that are missing, of the wrong shape or of the wrong dtype,
    with their files.
    """
    # MLX is lazy: this makes shapes, not numbers.
    expected = dict(tree_flatten(DiffusionGemma(config).parameters()))
    parameters, problems = [], []
    known = set()
    for name, array in expected.items():
        if name not in used:
            problems.append(f"`{name}` is missing")
            continue
        parts = _parts(name, used)
        known |= {f"{_module(name)}.{leaf}" for leaf in _PARTS[1:]} if len(parts) > 1 else set()
        known.add(name)
        how = config.quantization.for_module(_module(name)) if len(parts) > 1 else None
        found = list(_problems(name, array.shape, parts, how))
        problems += found
        parameters.append(SourceParameter(name, array.shape, parts, how))
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError(
            f"the source does not fit its config.json: {'; '.join(problems[:_SHOWN])}{more}",
            hint="is it a whole DiffusionGemma checkpoint with its own config.json?",
        )
    return parameters, [info for name, info in used.items() if name not in known]


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parts(name: str, used: Mapping[str, TensorInfo]) -> tuple[TensorInfo, ...]:
    path, _, leaf = name.rpartition(".")
    if leaf != "weight" or f"{path}.scales" not in used:
        return (used[name],)
    names = (f"{path}.{part}" for part in _PARTS)
    return tuple(used[part] for part in names if part in used)


def _problems(
    name: str, shape: tuple[int, ...], parts: tuple[TensorInfo, ...], how: Quantization | None
) -> Iterator[str]:
    if len(parts) == 1:
        yield from _differences(parts[0], shape, ("BF16", "F16", "F32"))
        return
    if how is None:
        yield f"config.json does not say how `{name}` is packed"
        return
    if shape[-1] % how.group_size:
        yield f"`{name}` has rows of {shape[-1]} values, which no groups of {how.group_size} fill"
        return
    if (len(parts) == 3) != how.has_biases:
        yield f"`{name}` has {len(parts) - 1} tensors beside it, and config.json says {how.mode}"
        return
    packed_shape, group_shape = packed_shapes(shape, how)
    yield from _differences(parts[0], packed_shape, ("U32",))
    scales = ("BF16", "F16", "F32") if how.has_biases else ("U8",)
    for part in parts[1:]:
        yield from _differences(part, group_shape, scales)


def _differences(info: TensorInfo, shape: tuple[int, ...], dtypes: Iterable[str]) -> Iterator[str]:
    if info.shape != shape:
        yield f"`{info.name}` in {info.file.name} has shape {list(info.shape)}, not {list(shape)}"
    if info.dtype not in dtypes:
        yield f"`{info.name}` in {info.file.name} is {info.dtype}, not {' or '.join(dtypes)}"


def packed_shapes(
    shape: tuple[int, ...], how: Quantization
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the packed weight (uint32) and of its scales, for a weight of `shape`."""
    *rows, width = shape
    return (*rows, width * how.bits // 32), (*rows, width // how.group_size)
