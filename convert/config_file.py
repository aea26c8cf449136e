"""The config.json of a converted checkpoint, written so that every known reader agrees on it.

Both spellings of the per-layer attention fields are there, values whose defaults differ between
runtimes are spelled out, and the `quantization` table names the mode of every exception, because
mlx-vlm reads one without as affine.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.quantization import Quantization

_QUANTIZATION_KEYS = ("quantization", "quantization_config")
_ATTENTION = ("per_layer_config", "global_head_dim", "num_global_key_value_heads")


def output_config(
    values: Mapping[str, Any],
    model: ModelConfig,
    *,
    dtype: str,
    packed: Mapping[str, tuple[Quantization, int]],
    keep_vision: bool,
) -> dict[str, Any]:
    """The config.json to write.

    Args:
        values, model: the source's config.json, as it is and as read.
        dtype: of everything that is not packed.
        packed: module path -> (how its weight is packed, how many bytes it takes).
        keep_vision: whether the vision tensors stay.
    """
    text = {key: value for key, value in values["text_config"].items() if key not in _ATTENTION}
    text |= _spelled_out(model)
    text |= _attention_fields(model.layers)
    for name in ("dtype", "torch_dtype"):
        if name in text:
            text[name] = dtype
    config = {key: value for key, value in values.items() if key not in _QUANTIZATION_KEYS}
    config.pop("torch_dtype", None)
    config |= {"dtype": dtype, "canvas_length": model.canvas_length, "text_config": text}
    if not keep_vision:
        config["vision_config"] = None
    if packed:
        table = quantization_table(packed)
        config |= dict.fromkeys(_QUANTIZATION_KEYS, table)
    return dict(sorted(config.items()))


def quantization_table(packed: Mapping[str, tuple[Quantization, int]]) -> dict[str, Any]:
    """config.json's table: what most bytes use as the default, everything else by module path.

    Modules that are not packed have no entry: readers look for their scales, and some cannot read
    a `false`.
    """
    nbytes: dict[Quantization, int] = {}
    for how, size in packed.values():
        nbytes[how] = nbytes.get(how, 0) + size
    default = max(nbytes, key=lambda how: (nbytes[how], how.bits, -how.group_size, how.mode))
    table: dict[str, Any] = _entry(default)
    table |= {path: _entry(how) for path, (how, _) in sorted(packed.items()) if how != default}
    return table


def _entry(how: Quantization) -> dict[str, Any]:
    return {"group_size": how.group_size, "bits": how.bits, "mode": how.mode}


def _spelled_out(model: ModelConfig) -> dict[str, Any]:
    """Text fields that transformers, mlx-vlm and this runtime would fill in differently."""
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {
        "num_hidden_layers": len(model.layers),
        "layer_types": [kinds[layer.is_sliding] for layer in model.layers],
        "rms_norm_eps": model.rms_norm_eps,
        "final_logit_softcapping": model.final_logit_softcapping,
        "max_position_embeddings": model.max_position_embeddings,
    }


def _attention_fields(layers: tuple[LayerConfig, ...]) -> dict[str, Any]:
    """Head sizes in both spellings; only transformers' where the other cannot say them."""
    sliding = _sizes(layer for layer in layers if layer.is_sliding)
    full = _sizes(layer for layer in layers if not layer.is_sliding)
    head_dim, kv_heads = sliding[0] if sliding else full[0]
    fields: dict[str, Any] = {"head_dim": head_dim, "num_key_value_heads": kv_heads}
    own = {
        str(index): {
            "head_dim": layer.head_dim,
            "num_key_value_heads": layer.num_key_value_heads,
        }
        for index, layer in enumerate(layers)
        if (layer.head_dim, layer.num_key_value_heads) != (head_dim, kv_heads)
    }
    if own:
        fields["per_layer_config"] = own
    if len(sliding) <= 1 and len(full) == 1:
        fields["global_head_dim"], fields["num_global_key_value_heads"] = full[0]
    return fields


def _sizes(layers: Iterable[LayerConfig]) -> list[tuple[int, int]]:
    """The different (head_dim, num_key_value_heads) of some layers, the most frequent first."""
    found: dict[tuple[int, int], int] = {}
    for layer in layers:
        sizes = (layer.head_dim, layer.num_key_value_heads)
        found[sizes] = found.get(sizes, 0) + 1
    return sorted(found, key=lambda sizes: -found[sizes])
