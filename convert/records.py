"""A conversion as data: every source tensor, every output tensor, in which file, by which means.

`plan.plan` makes these from headers alone, `stream.run` carries them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import Recipe, TensorClass

Layout = Literal["mlx", "transformers"]
Action = Literal["copy", "cast", "quantize"]


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of the output; dtype in safetensors' spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Repeat:
    """A tensor of the source that must hold the numbers of another one, and is not written."""

    original: TensorInfo
    copy: TensorInfo


@dataclass(frozen=True)
class TensorPlan:
    """One parameter: where it comes from and how it is written.

    Attributes:
        parameter: its name, which is also its name in a file of layout `mlx`.
        sources: the tensor; of a packed one weight, scales and, in affine mode, biases.
        source_quantization: how the source is packed; None when it is not.
        action: `copy`: the bytes of each source go to the output at the same place unchanged;
            `cast`: unpacked if need be, then written in `dtype`;
            `quantize`: unpacked if need be, then packed by `quantization`.
        quantization: how the output is packed; None when it is not.
        dtype: of the written values, or of scales and biases; config.json's spelling.
        outputs: what is written; of a packed tensor weight, scales and, in affine mode, biases.
        tensor_class: what it is part of.
        repeats: copies of its sources, held against them while those are read.
    """

    parameter: str
    sources: tuple[TensorInfo, ...]
    source_quantization: Quantization | None
    action: Action
    quantization: Quantization | None
    dtype: str
    outputs: tuple[OutputTensor, ...]
    tensor_class: TensorClass
    repeats: tuple[Repeat, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the output."""
        return sum(output.nbytes for output in self.outputs)

    @property
    def files(self) -> set[Path]:
        """The source's files that are read for it."""
        copies = [repeat.copy for repeat in self.repeats]
        return {info.file for info in (*self.sources, *copies)}


@dataclass(frozen=True)
class Skipped:
    """A source tensor that is not written, and why."""

    info: TensorInfo
    reason: str


@dataclass(frozen=True)
class ShardPlan:
    """One file of the output; its tensors in the order in which they are written."""

    file: str
    tensors: tuple[TensorPlan, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, without header and padding."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class ConversionPlan:
    """Everything a conversion will do.

    Attributes:
        source: folder of the source checkpoint.
        recipe: what was asked for.
        shards: the files to write.
        skipped: source tensors that are not written.
        config: the config.json to write.
        copied: names of files that are copied as they are.
        missing: names of files, or what else, a checkpoint should have and this output lacks.
        layout: `mlx`, or `transformers`: the released names, which transformers loads.
        fingerprint: the same for the same output bytes from the same source; stable hash.
    """

    source: Path
    recipe: Recipe
    shards: tuple[ShardPlan, ...]
    skipped: tuple[Skipped, ...]
    config: Mapping[str, Any]
    copied: tuple[str, ...]
    missing: tuple[str, ...]
    layout: Layout
    fingerprint: str = ""

    @property
    def tensors(self) -> tuple[TensorPlan, ...]:
        """All tensors in the order in which they are written."""
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the output."""
        return sum(shard.nbytes for shard in self.shards)


@dataclass(frozen=True)
class Progress:
    """How far a conversion is: bytes of the output, and the parameter in work."""

    done_bytes: int
    total_bytes: int
    tensor: str


@dataclass(frozen=True)
class TensorError:
    """How far a packed tensor is from its source.

    Attributes:
        largest: max |source - written| / max |source|.
        rms: rms(source - written) / rms(source).
        search_gain: the part of `rms` that searching removed; None where nothing was searched.
    """

    largest: float
    rms: float
    search_gain: float | None = None


@dataclass(frozen=True)
class StreamResult:
    """What carrying out a plan gave.

    Attributes:
        errors: by `TensorPlan.parameter`, for every tensor that was packed here.
        sha256: by shard file, hex.
        peak_memory: largest resident memory of the process in bytes.
        seconds: wall time.
    """

    errors: Mapping[str, TensorError]
    sha256: Mapping[str, str]
    peak_memory: int
    seconds: float
