"""config.json and generation_config.json as frozen records; every default and check of theirs.

Two spellings of the per-layer attention fields are read: the released one (`global_head_dim`,
`num_global_key_value_heads`) and the one transformers writes when it saves (`per_layer_config`).
Behaviour follows transformers' `DiffusionGemmaTextConfig`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_diffusiongemma.errors import CheckpointError, ConfigError
from mlx_diffusiongemma.fields import LARGEST, choice, integer, number, section, token_ids
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.quantization import QuantizationTable

_MOST_LAYERS = 10_000
_DIGITS = 10  # more than any layer's number has
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ROPE: dict[str, dict[str, Any]] = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
_IMAGE_TOKENS = {"image_token_id": 258_880, "boi_token_id": 255_999, "eoi_token_id": 258_882}
# The names a config.json may give to the dtype of its weights.
DTYPES = ("float32", "float16", "bfloat16")
# Values for which the reference has another computation, which this runtime does not have. The
# first one is what an absent key means.
_FIXED = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": ("vision",),
}


@dataclass(frozen=True)
class LayerConfig:
    """Attention of one layer.

    Attributes:
        is_sliding: sees a window; otherwise the whole prefix.
        head_dim, num_key_value_heads: sizes of this layer's heads.
        rope_theta: base of the rotary frequencies.
        rotary_pairs: how many of the head_dim / 2 pairs rotate; the others keep still.
    """

    is_sliding: bool
    head_dim: int
    num_key_value_heads: int
    rope_theta: float
    rotary_pairs: int

    @property
    def shares_key_and_value(self) -> bool:
        """Full layers have no value projection: the key projection serves both."""
        return not self.is_sliding


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the shape and the arithmetic of a DiffusionGemma text model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    sliding_window: int
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    rms_norm_eps: float
    final_logit_softcapping: float
    max_position_embeddings: int
    canvas_length: int
    layers: tuple[LayerConfig, ...]
    quantization: QuantizationTable
    image_token_ids: frozenset[int]
    has_vision: bool
    dtype: str

    def __post_init__(self) -> None:
        if not 1 <= self.top_k_experts <= self.num_experts:
            raise ConfigError(
                f"top_k_experts is {self.top_k_experts} of num_experts {self.num_experts}",
                hint="top_k_experts must be between 1 and num_experts",
            )
        self._check_widths()
        for layer in self.layers:
            if self.num_attention_heads % layer.num_key_value_heads or layer.head_dim % 2:
                raise ConfigError(
                    f"num_attention_heads {self.num_attention_heads}, num_key_value_heads "
                    f"{layer.num_key_value_heads}, head_dim {layer.head_dim}",
                    hint="key-value heads must divide the heads, and head_dim must be even",
                )

    def _check_widths(self) -> None:
        """Refuse sizes that are possible one by one but make rows longer than MLX can hold."""
        widths = {"2 * moe_intermediate_size": 2 * self.moe_intermediate_size}
        for layer in self.layers:
            widths["num_attention_heads * head_dim"] = self.num_attention_heads * layer.head_dim
            widths["num_key_value_heads * head_dim"] = layer.num_key_value_heads * layer.head_dim
            for what, width in widths.items():
                if width > LARGEST:
                    raise ConfigError(
                        f"the checkpoint says {what} = {width}",
                        hint=f"it must be at most {LARGEST}",
                    )


@dataclass(frozen=True)
class GenerationConfig:
    """What generation_config.json says; an absent file or key takes the reference's defaults."""

    sampler: SamplerSettings
    eos_token_ids: frozenset[int]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; CheckpointError when the file is missing or is not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"`{path}` does not exist",
            hint="a checkpoint folder holds config.json and *.safetensors",
        ) from None
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no JSON or UTF-8, endless digits, too deep
        raise CheckpointError(
            f"`{path}` is not valid JSON: {error}", hint="fetch this file again"
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"`{path}` holds a JSON {type(values).__name__}, not an object")
    return values


def read_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json."""
    return parse_config(read_json(folder / "config.json"))


def read_generation_config(folder: Path) -> GenerationConfig:
    """Read `folder`/generation_config.json, or the defaults where there is none.

    The end tokens named in config.json count when generation_config.json names none.
    """
    path = folder / "generation_config.json"
    values = read_json(path) if path.exists() else {}
    config = read_json(folder / "config.json")
    places = (values, config, config.get("text_config") or {})
    ends = (token_ids(place, "eos_token_id") for place in places if isinstance(place, Mapping))
    return GenerationConfig(
        sampler=SamplerSettings.from_generation_config(values),
        eos_token_ids=next(filter(None, ends), frozenset()),
    )


def parse_config(values: Mapping[str, Any]) -> ModelConfig:
    """Turn the object of a config.json into a `ModelConfig`; ConfigError names what is wrong."""
    if values.get("model_type") != "diffusion_gemma":
        raise ConfigError(
            f"the checkpoint says model_type {values.get('model_type')!r}",
            hint="this runtime reads checkpoints of model_type 'diffusion_gemma' only",
        )
    text = values.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError("config.json has no `text_config` object")
    for name, allowed in _FIXED.items():
        for place in (text, values):
            value = place.get(name)
            if value not in allowed and value is not None:
                raise ConfigError(
                    f"the checkpoint says {name} {value!r}",
                    hint=f"this runtime supports {name} {allowed[0]!r} only",
                )
    if text.get("final_logit_softcapping", ...) is None:  # the reference divides by it
        raise ConfigError(
            "the checkpoint says final_logit_softcapping null",
            hint="leave it out for 30, or say a finite number above 0",
        )
    images = (token_ids(values, name, default) for name, default in _IMAGE_TOKENS.items())
    return ModelConfig(
        vocab_size=integer(text, "vocab_size"),
        hidden_size=integer(text, "hidden_size"),
        intermediate_size=integer(text, "intermediate_size"),
        num_attention_heads=integer(text, "num_attention_heads"),
        sliding_window=integer(text, "sliding_window"),
        num_experts=integer(text, "num_experts"),
        top_k_experts=integer(text, "top_k_experts"),
        moe_intermediate_size=integer(text, "moe_intermediate_size"),
        rms_norm_eps=number(text, "rms_norm_eps", 1e-6),
        final_logit_softcapping=number(text, "final_logit_softcapping", 30.0),
        max_position_embeddings=integer(text, "max_position_embeddings", 131_072),
        canvas_length=integer(values, "canvas_length", 256),
        layers=_layers(text),
        quantization=QuantizationTable.from_config(
            values.get("quantization") or values.get("quantization_config")
        ),
        image_token_ids=frozenset().union(*images),
        has_vision=bool(values.get("vision_config")),
        dtype=choice(
            values if values.get("dtype") is not None else text, "dtype", DTYPES, default="bfloat16"
        ),
    )


def _layers(text: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    count = integer(text, "num_hidden_layers", most=_MOST_LAYERS)
    types = text.get("layer_types")
    if types is None:  # the reference's pattern: five sliding layers, then a full one
        types = [_FULL if (index + 1) % 6 == 0 else _SLIDING for index in range(count)]
    if not isinstance(types, list) or any(kind not in (_SLIDING, _FULL) for kind in types):
        raise ConfigError(
            f"the checkpoint says layer_types {types!r}",
            hint=f"it must be a list of {_SLIDING!r} and {_FULL!r}",
        )
    if len(types) != count:
        raise ConfigError(
            f"layer_types has {len(types)} entries and num_hidden_layers is {count}",
            hint="it must name a kind for every layer",
        )
    types = [*types[:-1], _FULL]  # the reference makes the last layer full whatever it says
    own = _per_layer(text, count)
    rope = section(text, "rope_parameters") or _ROPE
    if not set(rope) <= set(_ROPE):
        raise ConfigError(
            f"the checkpoint says rope_parameters {dict(rope)!r}",
            hint=f"it must hold an object for each of {_SLIDING!r} and {_FULL!r}, nothing else",
        )
    return tuple(
        _layer(text, kind, own=None if own is None else own.get(index, {}), rope=rope)
        for index, kind in enumerate(types)
    )


def _per_layer(text: Mapping[str, Any], count: int) -> dict[int, Mapping[str, Any]] | None:
    """`per_layer_config` by layer; transformers writes the keys as "5" or "05"."""
    values = section(text, "per_layer_config")
    if values is None:
        return None
    layers = {}
    for key in values:
        index = int(key) if key.isdecimal() and len(key) < _DIGITS else count
        own = section(values, key) or {}
        if index >= count or not set(own) <= {"head_dim", "num_key_value_heads"}:
            raise ConfigError(
                f"per_layer_config has {key!r}: {dict(own)!r}",
                hint=f"it gives layers 0 to {count - 1} a head_dim and num_key_value_heads",
            )
        layers[index] = own
    return layers


def _layer(
    text: Mapping[str, Any],
    kind: str,
    *,
    own: Mapping[str, Any] | None,
    rope: Mapping[str, Any],
) -> LayerConfig:
    head_dim = integer(text, "head_dim", 256)
    kv_heads = integer(text, "num_key_value_heads", 4)
    if own is not None:
        head_dim = integer(own, "head_dim", head_dim)
        kv_heads = integer(own, "num_key_value_heads", kv_heads)
    elif kind == _FULL:
        head_dim = integer(text, "global_head_dim", 512)
        kv_heads = integer(text, "num_global_key_value_heads", kv_heads)
    rotary = section(rope, kind) or _ROPE[kind]
    return LayerConfig(
        is_sliding=kind == _SLIDING,
        head_dim=head_dim,
        num_key_value_heads=kv_heads,
        rope_theta=number(rotary, "rope_theta", _ROPE[kind]["rope_theta"]),
        rotary_pairs=_rotary_pairs(rotary, head_dim, kind),
    )


def _rotary_pairs(rope: Mapping[str, Any], head_dim: int, kind: str) -> int:
    rope_type = rope.get("rope_type", "default")
    factor = number(rope, "partial_rotary_factor", 1.0)
    if rope_type == "proportional" and factor <= 1 and rope.get("factor") in (None, 1):
        return int(factor * head_dim // 2)
    if rope_type == "default" and factor == 1:
        return head_dim // 2
    raise ConfigError(
        f"rope_parameters of {kind} are {dict(rope)}",
        hint="this runtime knows rope_type 'proportional', and 'default' without a partial factor",
    )
