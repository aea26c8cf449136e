"""The files of a checkpoint, read by their headers: which tensors there are and what each is for.

Nothing here reads a tensor's values, so a 52 GB checkpoint is described in milliseconds.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from mlx_diffusiongemma.config import read_json
from mlx_diffusiongemma.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4, "U8": 1, "I8": 1, "F64": 8, "I32": 4}


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
        return self.size * _ITEM_BYTES.get(self.dtype, 8)


# First match wins. A tensor's use is the name of the module parameter it fills, or why it is left
# out: "tied" repeats a decoder tensor, "vision" is the image side, "derived" is computed anew.
_USES = (
    (r"model\.encoder\.(vision_tower|embed_vision)\..+", "vision"),
    (r"(model\.encoder\.language_model\.layers\.\d+\.layer_scalar)", r"\1"),
    (r".+\.rotary_emb\..+", "derived"),
    (r"model\.encoder\.language_model\..+", "tied"),
    (r"lm_head\.(weight|scales|biases)", "tied"),
    (r"(model\.decoder\..+\.experts\.(?:gate_up_proj|down_proj))", r"\1.weight"),
    (r"(model\.decoder\..+)", r"\1"),
)
_LEFT_OUT = {"tied", "vision", "derived"}


@dataclass(frozen=True)
class TensorPlan:
    """What each tensor of a checkpoint is for.

    Attributes:
        used: parameter name -> the tensor that fills it.
        left_out: reason ("tied", "vision", "derived") -> tensors that nothing reads.
        unknown: tensors that no rule knows.
    """

    used: Mapping[str, TensorInfo]
    left_out: Mapping[str, tuple[TensorInfo, ...]]
    unknown: tuple[TensorInfo, ...]


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of the checkpoint in `folder`, by name.

    CheckpointError when a shard is missing, damaged or cut short, when the index names a tensor
    that its shard lacks, or when two files hold the same tensor.
    """
    index = folder / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"`{index}` has no `weight_map`")
        paths = [folder / name for name in sorted(set(weight_map.values()))]
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
    except SafetensorError as error:
        raise CheckpointError(
            f"`{path}` is damaged or cut short: {error}", hint="fetch this file again"
        ) from None


def plan_tensors(tensors: Mapping[str, TensorInfo]) -> TensorPlan:
    """Say what each tensor is for. CheckpointError when two would fill the same parameter."""
    used: dict[str, TensorInfo] = {}
    left_out: dict[str, list[TensorInfo]] = {}
    unknown: list[TensorInfo] = []
    for name, info in tensors.items():
        use = _use(name)
        if use is None:
            unknown.append(info)
        elif use in _LEFT_OUT:
            left_out.setdefault(use, []).append(info)
        elif use in used:
            raise CheckpointError(f"tensors `{used[use].name}` and `{name}` both fill `{use}`")
        else:
            used[use] = info
    return TensorPlan(used, {why: tuple(infos) for why, infos in left_out.items()}, tuple(unknown))


def _use(name: str) -> str | None:
    for pattern, use in _USES:
        if match := re.fullmatch(pattern, name):
            return use if use in _LEFT_OUT else match.expand(use)
    return None
