"""The files of a checkpoint, read by their headers: which tensors there are and what each is for.

Nothing here reads a tensor's values, so a checkpoint of 50 GB is described in milliseconds.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from mlx_diffusiongemma.config import read_json
from mlx_diffusiongemma.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_ITEM_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}  # safetensors' other types have 8
_FLOATS = ("BF16", "F16", "F32")  # what becomes the compute dtype when it is loaded
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its file's header describes it; dtype in safetensors' spelling."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """How many values it holds."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.size * _ITEM_BITS.get(self.dtype, 8) // 8

    @property
    def is_float(self) -> bool:
        """True for values, scales and biases that are cast to the compute dtype when loaded."""
        return self.dtype in _FLOATS

    def memory_bytes(self, item_size: int) -> int:
        """Bytes once loaded, when the compute dtype takes `item_size` bytes."""
        return self.size * item_size if self.is_float else self.nbytes


# What a tensor is for, by its name. First match wins: the name of the parameter that it fills.
_USED = (
    (r"(model\.encoder\.language_model\.layers\.\d+\.layer_scalar)", r"\1"),
    (r"(model\.decoder\..+\.experts\.(?:gate_up_proj|down_proj))", r"\1.weight"),
    (r"(model\.decoder\..+)", r"\1"),
)
# Repeats of decoder tensors: the name they repeat.
_TIED = (
    (r"model\.encoder\.language_model\.(.+)", r"model.decoder.\1"),
    (r"lm_head\.(.+)", r"model.decoder.embed_tokens.\1"),
)
# Not read: the image side, and what is computed anew.
_SKIPPED = (
    (r"model\.encoder\.(vision_tower|embed_vision)\..+", "vision"),
    (r".+\.rotary_emb\..+", "derived"),
)


@dataclass(frozen=True)
class TensorPlan:
    """What each tensor of a checkpoint is for.

    Attributes:
        used: parameter name -> the tensor that fills it.
        left_out: reason ("tied", "vision", "derived") -> tensors that nothing reads. Tied ones
            repeat a decoder tensor.
        unknown: tensors that no rule knows.
    """

    used: Mapping[str, TensorInfo]
    left_out: Mapping[str, tuple[TensorInfo, ...]]
    unknown: tuple[TensorInfo, ...]


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of the checkpoint in `folder`, by name.

    CheckpointError when a shard is missing, damaged or cut short, when the index names a tensor
    that its shard lacks, when two files hold the same tensor, or when there is a second model.
    """
    index = folder / INDEX
    if index.exists():
        weight_map = _weight_map(index)
        paths = [folder / name for name in sorted(set(weight_map.values()))]
        if (folder / _SINGLE).exists() and folder / _SINGLE not in paths:
            raise CheckpointError(
                f"`{folder}` holds {_SINGLE}, and {INDEX} names other files",
                hint="runtimes differ in which of the two they read: remove the one that is old",
            )
    else:
        weight_map = {}
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(
            f"`{folder}` holds no *.safetensors file", hint="name the folder of a whole checkpoint"
        )
    tensors: dict[str, TensorInfo] = {}
    for info in (info for path in paths for info in _read_header(path)):
        if info.name in tensors:
            raise CheckpointError(
                f"tensor `{info.name}` is in `{tensors[info.name].file.name}` and in "
                f"`{info.file.name}`",
                hint="remove the file that does not belong to this checkpoint",
            )
        tensors[info.name] = info
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise CheckpointError(
            f"`{INDEX}` names {len(lost)} tensors that no shard holds, first `{lost[0]}`",
            hint="fetch the checkpoint again",
        )
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> name of the file beside the index that holds it."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"`{index}` has no `weight_map`", hint="fetch this file again")
    for name in names.values():
        is_beside = isinstance(name, str) and Path(name).name == name
        if not is_beside or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"`{index}` names the file {name!r}",
                hint="an index may only name *.safetensors files that lie beside it",
            )
    return names


def _read_header(path: Path) -> Iterable[TensorInfo]:
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                part = file.get_slice(name)
                yield TensorInfo(name, path, tuple(part.get_shape()), str(part.get_dtype()))
    except FileNotFoundError:
        raise CheckpointError(
            f"`{path}` does not exist", hint="the checkpoint is incomplete: fetch it again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error}") from None
    except SafetensorError as error:
        with path.open("rb") as start:
            is_pointer = start.read(len(_LFS_POINTER)) == _LFS_POINTER
        raise CheckpointError(
            f"`{path}` is damaged or cut short: {error}",
            hint="it is a Git LFS pointer: run `git lfs pull`"
            if is_pointer
            else "fetch this file again",
        ) from None


def plan_tensors(tensors: Mapping[str, TensorInfo]) -> TensorPlan:
    """Say what each tensor is for.

    CheckpointError when two would fill the same parameter, or when one that should repeat another
    has a shape of its own.
    """
    used: dict[str, TensorInfo] = {}
    left_out: dict[str, list[TensorInfo]] = {}
    others: list[TensorInfo] = []
    for name, info in tensors.items():
        if why := _rewrite(name, _SKIPPED):
            left_out.setdefault(why, []).append(info)
        elif (parameter := _rewrite(name, _USED)) is None:
            others.append(info)
        elif parameter in used:
            raise CheckpointError(
                f"tensors `{used[parameter].name}` and `{name}` both fill `{parameter}`",
                hint="only one of the two can belong to this checkpoint",
            )
        else:
            used[parameter] = info
    unknown = []
    for info in others:
        if _is_repeat(info, used):
            left_out.setdefault("tied", []).append(info)
        else:
            unknown.append(info)
    return TensorPlan(used, {why: tuple(infos) for why, infos in left_out.items()}, tuple(unknown))


def _is_repeat(info: TensorInfo, used: Mapping[str, TensorInfo]) -> bool:
    """True when the tensor repeats a used one; a repeat may be packed otherwise."""
    repeated = repeated_parameter(info.name)
    if repeated is None:
        return False
    module, _, leaf = repeated.rpartition(".")
    if repeated not in used:
        return leaf in ("weight", "scales", "biases") and f"{module}.weight" in used
    original = used[repeated]
    if info.is_float and original.is_float and info.shape != original.shape:
        raise CheckpointError(
            f"`{info.name}` has shape {list(info.shape)}, but it should repeat "
            f"`{original.name}` of shape {list(original.shape)}",
            hint="this runtime reads checkpoints in which the two are the same",
        )
    return True


def repeated_parameter(name: str) -> str | None:
    """The parameter that the tensor `name` repeats; None when its name is not that of a repeat."""
    repeated = _rewrite(name, _TIED)
    return repeated and (_rewrite(repeated, _USED) or repeated)


def _rewrite(name: str, rules: Iterable[tuple[str, str]]) -> str | None:
    for pattern, replacement in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return None
