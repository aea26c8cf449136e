"""What a conversion gives, in numbers: bytes, bits per weight and errors by class of tensors.

The same report describes a plan (without errors and times) and a conversion that was carried out.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_diffusiongemma import device
from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.config import ModelConfig, parse_config
from mlx_diffusiongemma.convert.records import (
    ConversionPlan,
    StreamResult,
    TensorError,
    TensorPlan,
)
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import TENSOR_CLASSES, TensorClass


@dataclass(frozen=True)
class ClassReport:
    """One class of tensors.

    Attributes:
        name: the class.
        tensors: how many parameters it has.
        weights: how many values they hold.
        nbytes: bytes in the output, scales and biases included.
        packing: how they are written, such as "4 bits g64 affine", the most bytes first.
        largest_error: max |source - written| / max |source| of its worst tensor.
        rms_error: rms(source - written) / rms(source), mean over its tensors by size.
        search_gain: part of the error that searching removed, mean by size.
    """

    name: TensorClass
    tensors: int
    weights: int
    nbytes: int
    packing: tuple[str, ...]
    largest_error: float | None
    rms_error: float | None
    search_gain: float | None

    @property
    def bits_per_weight(self) -> float:
        """Bits each value takes, its share of scales and biases included."""
        return 8 * self.nbytes / max(1, self.weights)


@dataclass(frozen=True)
class ConversionReport:
    """Everything a conversion did, or will do.

    Attributes:
        recipe: its name.
        source, output: folders; no output for a plan.
        dtype: of what is not packed.
        classes: by class; classes without tensors are absent.
        shards: file -> bytes of its tensors.
        written, merged, skipped: source tensors that became a tensor, that became part of one
            (scales and biases that were unpacked), and those left out by reason.
        copied, missing: other files that were copied, and what a checkpoint has and this one lacks.
        memory_bytes, context: predicted resident memory with that many tokens of context, computing
            in `dtype`.
        num_experts, top_k_experts: how many there are, and how many a token meets.
        sha256: shard -> checksum; peak_memory, seconds: of the run; None for a plan.
    """

    recipe: str
    source: Path
    output: Path | None
    dtype: str
    classes: tuple[ClassReport, ...]
    shards: Mapping[str, int]
    written: int
    merged: int
    skipped: Mapping[str, int]
    copied: tuple[str, ...]
    missing: tuple[str, ...]
    memory_bytes: int
    context: int
    num_experts: int
    top_k_experts: int
    sha256: Mapping[str, str]
    peak_memory: int | None
    seconds: float | None

    @property
    def source_tensors(self) -> int:
        """How many tensors the source has."""
        return self.written + self.merged + sum(self.skipped.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the output."""
        return sum(part.nbytes for part in self.classes)

    @property
    def text_bytes(self) -> int:
        """Bytes of the text model, which is what this runtime loads."""
        return sum(part.nbytes for part in self.classes if part.name != "vision")

    @property
    def bits_per_weight(self) -> float:
        """Bits per value of the text model."""
        return 8 * self.text_bytes / max(1, self.text_weights)

    @property
    def text_weights(self) -> int:
        """Values of the text model."""
        return sum(part.weights for part in self.classes if part.name != "vision")

    @property
    def expert_share(self) -> float:
        """The part of the text model's values that experts hold."""
        experts = sum(part.weights for part in self.classes if part.name == "experts")
        return experts / max(1, self.text_weights)

    def as_fields(self) -> dict[str, Any]:
        """By name, ready for JSON."""
        fields = asdict(self)
        fields["source"] = str(self.source)
        fields["output"] = None if self.output is None else str(self.output)
        for values, part in zip(fields["classes"], self.classes, strict=True):
            values["bits_per_weight"] = part.bits_per_weight
        return fields | {
            "source_tensors": self.source_tensors,
            "nbytes": self.nbytes,
            "text_bytes": self.text_bytes,
            "bits_per_weight": self.bits_per_weight,
        }


def report(
    plan: ConversionPlan, *, output: Path | None = None, result: StreamResult | None = None
) -> ConversionReport:
    """Describe a plan and, when it was carried out, its result."""
    tensors = plan.tensors
    sources = Counter(_role(tensor) for tensor in tensors for _ in tensor.sources)
    merged = sources["merged"] - sum(_role(tensor) == "merged" for tensor in tensors)
    errors = result.errors if result else {}
    config = parse_config(plan.config)
    return ConversionReport(
        recipe=plan.recipe.name,
        source=plan.source,
        output=output,
        dtype=plan.recipe.dtype,
        classes=tuple(_classes(tensors, errors)),
        shards={shard.file: shard.nbytes for shard in plan.shards},
        written=sources.total() - merged,
        merged=merged,
        skipped=dict(Counter(skipped.reason for skipped in plan.skipped)),
        copied=plan.copied,
        missing=plan.missing,
        memory_bytes=_memory(plan, config),
        context=device.DEFAULT_CONTEXT,
        num_experts=config.num_experts,
        top_k_experts=config.top_k_experts,
        sha256=dict(result.sha256) if result else {},
        peak_memory=result.peak_memory if result else None,
        seconds=result.seconds if result else None,
    )


def _role(tensor: TensorPlan) -> str:
    """Parts of a packed source become one tensor, unless they are copied as they are."""
    return "merged" if tensor.source_quantization and tensor.action != "copy" else "written"


def _classes(
    tensors: Iterable[TensorPlan], errors: Mapping[str, TensorError]
) -> Iterable[ClassReport]:
    found: dict[TensorClass, list[TensorPlan]] = {}
    for tensor in tensors:
        found.setdefault(tensor.tensor_class, []).append(tensor)
    for name in TENSOR_CLASSES:
        if name not in found:
            continue
        packing: Counter[str] = Counter()
        for tensor in found[name]:
            packing[describe_packing(tensor)] += tensor.nbytes
        known = [
            (errors[tensor.parameter], values(tensor))
            for tensor in found[name]
            if tensor.parameter in errors
        ]
        gains = [
            (error.search_gain, size) for error, size in known if error.search_gain is not None
        ]
        yield ClassReport(
            name=name,
            tensors=len(found[name]),
            weights=sum(map(values, found[name])),
            nbytes=sum(tensor.nbytes for tensor in found[name]),
            packing=tuple(text for text, _ in packing.most_common()),
            largest_error=max((error.largest for error, _ in known), default=None),
            rms_error=_mean((error.rms, size) for error, size in known),
            search_gain=_mean(gains),
        )


def _mean(pairs: Iterable[tuple[float, int]]) -> float | None:
    pairs = list(pairs)
    total = sum(size for _, size in pairs)
    return sum(value * size for value, size in pairs) / total if total else None


def values(tensor: TensorPlan) -> int:
    """How many values a tensor stands for, however it is packed."""
    written = tensor.outputs[0]
    size = math.prod(written.shape)
    return size * 32 // tensor.quantization.bits if tensor.quantization else size


def describe_packing(tensor: TensorPlan) -> str:
    """How a tensor is written: "4 bits g64 affine", or its dtype."""
    how = tensor.quantization
    return describe_quantization(how) if how else tensor.outputs[0].dtype


def describe_quantization(how: Quantization) -> str:
    """Such as "4 bits g64 affine"."""
    return f"{how.bits} bits g{how.group_size} {how.mode}"


def recipe_notes(plan: ConversionPlan) -> Iterator[str]:
    """What there is to know of a recipe and of what it is applied to, a sentence each."""
    recipe = plan.recipe
    if recipe.cost:
        yield f"Cost: {recipe.cost}."
    for pattern, how in recipe.overrides:
        yield f"Changed: `{pattern}` has {describe_quantization(how) if how else 'no packing'}."
    if recipe.search:
        yield "Scales and biases are chosen by least squares, group by group."
    if any(tensor.source_quantization for tensor in plan.tensors):
        yield "The source was packed before: its errors stay, and are not in the numbers here."


def _memory(plan: ConversionPlan, config: ModelConfig) -> int:
    """Bytes that the output needs when it runs in its own dtype, with the usual context."""
    written = (
        TensorInfo(output.name, plan.source, output.shape, output.dtype)
        for tensor in plan.tensors
        if tensor.tensor_class != "vision"
        for output in tensor.outputs
    )
    dtype = device.DTYPES[plan.recipe.dtype]
    return device.memory_need(config, written, dtype, device.DEFAULT_CONTEXT).total
