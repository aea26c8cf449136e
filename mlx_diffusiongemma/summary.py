"""What a checkpoint is, told from its headers and its config alone: for `dgemma-mlx info`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_diffusiongemma.checkpoint import TensorInfo, TensorPlan, plan_tensors, read_tensors
from mlx_diffusiongemma.config import (
    GenerationConfig,
    ModelConfig,
    read_config,
    read_generation_config,
    read_json,
)
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import CLASS_LABELS, PACKABLE_CLASSES, tensor_class

VISION = "vision (not loaded)"
_NAMES = {**CLASS_LABELS, "vision": VISION}
_PACKED, _PACKING = "U32", ("scales", "biases")


@dataclass(frozen=True)
class ClassSummary:
    """One kind of weights.

    Attributes:
        name: "embedding", "attention", "dense MLP", "experts", "router", "self-conditioning",
            "norms and scalars" or "vision (not loaded)".
        parameters: how many numbers it stands for, however they are packed.
        nbytes: bytes in the files, scales and biases included.
    """

    name: str
    parameters: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits in the files for each parameter, its share of scales and biases included."""
        return 8 * self.nbytes / self.parameters


@dataclass(frozen=True)
class LeftOut:
    """Tensors that are in the files and that loading does not read.

    Attributes:
        reason: "vision", "tied" (repeats another tensor) or "derived" (computed anew).
        tensors: how many they are.
        nbytes: bytes in the files.
    """

    reason: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint as its headers and its config describe it.

    Attributes:
        folder: where it lies.
        config: its architecture; `config.quantization` says how it is packed.
        generation_config: sampler defaults and end tokens.
        dtype: what config.json says the weights are: "bfloat16", "float16" or "float32".
        files: how many *.safetensors files it has.
        file_bytes: their bytes together, headers included.
        classes: the kinds of weights, in a fixed order; kinds without tensors are absent.
        packings: how matrices are packed (None: not at all) -> class -> how many are; what takes
            most bytes comes first.
        left_out: what loading does not read, by reason.
        unknown: names of tensors that no rule knows; loading refuses them.
        tensors: what loading reads.
        has_chat_template: the checkpoint brings a chat template.
        supports_thinking: that template can turn thinking on and off.
    """

    folder: Path
    config: ModelConfig
    generation_config: GenerationConfig
    dtype: str
    files: int
    file_bytes: int
    classes: tuple[ClassSummary, ...]
    packings: Mapping[Quantization | None, Mapping[str, int]]
    left_out: tuple[LeftOut, ...]
    unknown: tuple[str, ...]
    tensors: tuple[TensorInfo, ...]
    has_chat_template: bool
    supports_thinking: bool

    @property
    def parameters(self) -> int:
        """Parameters of the text model: every class but vision."""
        return sum(part.parameters for part in self.classes if part.name != VISION)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: `top_k_experts` of the experts and all the rest."""
        experts = sum(part.parameters for part in self.classes if part.name == "experts")
        chosen = experts * self.config.top_k_experts // self.config.num_experts
        return self.parameters - experts + chosen

    @property
    def nbytes(self) -> int:
        """Bytes in the files of what is loaded."""
        return sum(info.nbytes for info in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits in the files for each parameter of the text model."""
        return 8 * self.nbytes / max(1, self.parameters)

    def memory_bytes(self, item_size: int) -> int:
        """Bytes of the loaded weights when the compute dtype takes `item_size` bytes."""
        return sum(info.memory_bytes(item_size) for info in self.tensors)


def summarise(folder: Path) -> CheckpointSummary:
    """Describe the checkpoint in `folder` without reading a tensor.

    CheckpointError or ConfigError when its files cannot be read; tensors that do not fit the
    config are found by loading only.
    """
    config = read_config(folder)
    plan = plan_tensors(read_tensors(folder))
    left_out = tuple(
        LeftOut(reason, len(infos), sum(info.nbytes for info in infos))
        for reason, infos in plan.left_out.items()
    )
    template = _chat_template(folder)
    everything = [*plan.used.values(), *plan.unknown, *sum(plan.left_out.values(), ())]
    files = {info.file for info in everything}
    return CheckpointSummary(
        folder=folder,
        config=config,
        generation_config=read_generation_config(folder),
        dtype=config.dtype,
        files=len(files),
        file_bytes=sum(file.stat().st_size for file in files),
        classes=tuple(_classes(config, plan)),
        packings=_packings(config, plan.used),
        left_out=left_out,
        unknown=tuple(info.name for info in plan.unknown),
        tensors=tuple(plan.used.values()),
        has_chat_template=bool(template),
        supports_thinking="enable_thinking" in template,
    )


def _classes(config: ModelConfig, plan: TensorPlan) -> Iterable[ClassSummary]:
    parameters, nbytes = Counter[str](), Counter[str]()
    named = [*plan.used.items(), *((info.name, info) for info in plan.left_out.get("vision", ()))]
    for parameter, info in named:
        name = _NAMES[tensor_class(parameter)]
        parameters[name] += _parameters(config, parameter, info)
        nbytes[name] += info.nbytes
    for name in _NAMES.values():
        if parameters[name]:
            yield ClassSummary(name, parameters[name], nbytes[name])


def _packings(
    config: ModelConfig, used: Mapping[str, TensorInfo]
) -> dict[Quantization | None, dict[str, int]]:
    """How the matrices are packed; see `CheckpointSummary.packings`."""
    found: dict[Quantization | None, Counter[str]] = {}
    nbytes = Counter[Quantization | None]()
    for parameter, info in used.items():
        module, _, leaf = parameter.rpartition(".")
        kind = tensor_class(parameter)
        if leaf == "weight" and len(info.shape) > 1 and kind in PACKABLE_CLASSES:
            how = config.quantization.for_module(module) if f"{module}.scales" in used else None
            found.setdefault(how, Counter())[_NAMES[kind]] += 1
            nbytes[how] += info.nbytes
    return {
        how: {name: found[how][name] for name in _NAMES.values() if found[how][name]}
        for how, _ in nbytes.most_common()
    }


def _parameters(config: ModelConfig, parameter: str, info: TensorInfo) -> int:
    """How many parameters a tensor stands for: packed words hold several, scales none."""
    module, _, leaf = parameter.rpartition(".")
    if leaf in _PACKING:
        return 0
    how = config.quantization.for_module(module)
    if info.dtype == _PACKED and how is not None:
        return info.size * 32 // how.bits
    return info.size


def _chat_template(folder: Path) -> str:
    """The text of the checkpoint's chat template; empty where it has none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8", errors="replace")
    path = folder / "tokenizer_config.json"
    template: Any = read_json(path).get("chat_template") if path.exists() else None
    if isinstance(template, list):  # several, each with a name
        named = {part.get("name"): part for part in template if isinstance(part, Mapping)}
        template = named.get("default", {}).get("template")
    return template if isinstance(template, str) else ""
