"""A parity trace as data: which model was recorded, where, on which inputs, and how much is kept.

A trace is a manifest and arrays. The manifest says everything that the arrays' names and shapes
follow from (`layout.py`), and nothing about the machine's folders or its user.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.errors import ConfigError, TraceError
from mlx_diffusiongemma.options import SamplerSettings

Arrays = Mapping[str, np.ndarray]

# From the finest to the coarsest: how exactly a model computes.
PRECISIONS = ("fp32", "fp16", "bf16", "8-bit", "4-bit")
# What the reference's sampler knows; this runtime's own settings keep their defaults in a trace.
_SETTINGS = (
    *("max_denoising_steps", "entropy_bound", "t_min", "t_max"),
    *("stability_threshold", "confidence_threshold"),
)
_DAMAGED = "record the trace again"
_MOST = 10_000_000  # of any count or size; a manifest that claims more is damaged


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What two models must have in common for a trace of one to say anything about the other."""

    vocab_size: int
    hidden_size: int
    canvas_length: int
    sliding_window: int
    num_attention_heads: int
    num_experts: int
    top_k_experts: int
    head_dims: tuple[int, ...]
    key_value_heads: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig) -> "Architecture":
        """The architecture of a checkpoint; the two tuples have an entry for each layer."""
        shared = {field.name for field in fields(cls)} & vars(config).keys()
        return cls(
            **{name: vars(config)[name] for name in shared},
            head_dims=tuple(layer.head_dim for layer in config.layers),
            key_value_heads=tuple(layer.num_key_value_heads for layer in config.layers),
        )

    def differences(self, other: "Architecture") -> list[str]:
        """What differs, such as "hidden_size is 64, not 48"; the vocabulary first."""
        mine, theirs = vars(self), vars(other)
        return [
            f"{name} is {theirs[name]}, not {mine[name]}"
            for name in mine
            if theirs[name] != mine[name]
        ]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Which checkpoint it was.

    Attributes:
        name: "demo" or a Hub id; empty for a folder, whose path is nobody's business.
        revision: the commit of a Hub model, else empty.
        weights: digest of the files' headers and of some bytes of every tensor.
    """

    name: str
    revision: str
    weights: str
    architecture: Architecture


@dataclass(frozen=True, kw_only=True)
class Producer:
    """What computed the numbers.

    Attributes:
        backend: "transformers" or "mlx".
        device: such as "cpu" or "cuda NVIDIA H200".
        dtype: of activations: "float32", "float16" or "bfloat16".
        precision: one of `PRECISIONS`; of a quantised model that of its narrowest weights.
        versions: of the libraries, by name.
    """

    backend: str
    device: str
    dtype: str
    precision: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How much of what a pass computes is kept.

    Attributes:
        positions: rows of each pass, spread over its tokens.
        channels: values of each row, spread over its width.
        logits: the largest logits of a position; the others count together.
        feed: of these, how many are fed back as self-conditioning.
    """

    positions: int
    channels: int
    logits: int
    feed: int


@dataclass(frozen=True, kw_only=True)
class PassCase:
    """A prompt, canvases and a block that go through every pass."""

    name: str
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class GenerationCase:
    """A whole generation; its arrays hold the draws.

    Attributes:
        text: what was asked, empty for random tokens.
        prompt_tokens, answer_tokens: counts, without the end token.
        canvases, steps: how many there were, steps over all canvases.
        max_tokens, eos_token_ids, settings: what it was asked with.
    """

    name: str
    text: str
    prompt_tokens: int
    answer_tokens: int
    canvases: int
    steps: int
    max_tokens: int
    eos_token_ids: tuple[int, ...]
    settings: SamplerSettings


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a trace but its numbers."""

    model: ModelFacts
    producer: Producer
    sampling: Sampling
    cases: tuple[PassCase, ...]
    generations: tuple[GenerationCase, ...]

    def to_json(self) -> str:
        """As it is stored; `from_json` reads it."""
        values = asdict(self)
        for case in values["generations"]:
            case["settings"] = {name: case["settings"][name] for name in _SETTINGS}
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """TraceError when a field is missing, unknown or of another kind."""
        try:
            values = _object("manifest", json.loads(text))
            model = dict(_object("model", values["model"]))
            model["architecture"] = _record(Architecture, model["architecture"])
            found = cls(
                model=_record(ModelFacts, model),
                producer=_record(Producer, values["producer"]),
                sampling=_record(Sampling, values["sampling"]),
                cases=tuple(_record(PassCase, case) for case in values["cases"]),
                generations=tuple(_generation(case) for case in values["generations"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError, ConfigError) as error:
            raise TraceError(f"the trace's manifest is damaged: {error}", hint=_DAMAGED) from None
        architecture = found.model.architecture
        if len(architecture.key_value_heads) != len(architecture.head_dims):
            raise TraceError(
                f"the trace's manifest is damaged: head_dims are of {len(architecture.head_dims)} "
                f"layers, key_value_heads of {len(architecture.key_value_heads)}",
                hint=_DAMAGED,
            )
        if found.producer.precision not in PRECISIONS:
            precision = found.producer.precision
            raise TraceError(f"the trace has precision {precision!r}", hint=_DAMAGED)
        return found


@dataclass(frozen=True, eq=False)
class Trace:
    """A manifest and its arrays, by the names of `layout.expected_arrays`."""

    manifest: Manifest
    arrays: Arrays


def _generation(values: Any) -> GenerationCase:
    given = _object("a generation", values)
    told = _object("settings", given["settings"])
    settings = SamplerSettings(**{name: told[name] for name in _SETTINGS})
    return _record(GenerationCase, {**given, "settings": settings})


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {_shown(value)}")
    return value


def _record(cls: type, values: Any) -> Any:
    """A record of `cls` from JSON's values; lists become tuples. TypeError names what is wrong."""
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _object(cls.__name__, values).items()
    }
    found = cls(**given)
    for field in fields(cls):
        if not _fits(field.type, given[field.name]):
            raise TypeError(f"{field.name} is {_shown(given[field.name])}")
    return found


def _fits(kind: Any, value: Any) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value <= _MOST
    if kind == tuple[int, ...]:
        return isinstance(value, tuple) and all(_fits(int, number) for number in value)
    if kind is str:
        return isinstance(value, str)
    if kind == Mapping[str, str]:
        return isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())
    return not isinstance(value, tuple)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
