"""Tiny random checkpoints in the released layout.

    folder = write_checkpoint(tmp_path, config_values(), random_tensors(config_values()))

Every norm weight, scale and scalar differs from 1 and the two layer scalars of a layer differ from
each other, so that leaving one out or confusing two shows in the logits.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_diffusiongemma.checkpoint import INDEX
from mlx_diffusiongemma.config import parse_config, read_config
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.weights import load_weights

SLIDING, FULL = "sliding_attention", "full_attention"
ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
VISION_TENSORS = {
    "model.encoder.vision_tower.patch_embedder.input_proj.weight": (16, 48),
    "model.encoder.embed_vision.embedding_projection.weight": (128, 16),
}
# What the community's converters write, and every other group size once.
FORMATS = [
    *(Quantization(bits, 64) for bits in (2, 3, 4, 5, 6, 8)),
    *(Quantization(4, group_size) for group_size in (32, 128)),
    Quantization(4, 32, "mxfp4"),
    Quantization(8, 32, "mxfp8"),
    Quantization(4, 16, "nvfp4"),
]
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "layer_types": [SLIDING, SLIDING, FULL],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 8,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 128,
    "max_position_embeddings": 4096,
}


def config_values(**changes: Any) -> dict[str, Any]:
    """The object of a tiny model's config.json in the released spelling; changes are to its text.

    All its matrices have rows of 128 or more, so that every group size fits.
    """
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "dtype": "bfloat16",
        "canvas_length": 8,
        "boi_token_id": 5,
        "eoi_token_id": 6,
        "image_token_id": 7,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "diffusion_gemma_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "final_logit_softcapping": 30.0,
            "use_bidirectional_attention": "vision",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "eos_token_id": 1,
            "rope_parameters": ROPE,
            **_SIZES,
            **changes,
        },
        "vision_config": {"model_type": "gemma4_vision"},
    }


def random_tensors(
    values: Mapping[str, Any], *, seed: int = 0, dtype: mx.Dtype = mx.bfloat16
) -> dict[str, mx.array]:
    """Tensors of the model of `values` under the released names, two vision tensors among them."""
    random = np.random.default_rng(seed)
    shapes = {
        _released_name(name): array.shape
        for name, array in tree_flatten(DiffusionGemma(parse_config(values)).parameters())
    }
    arrays = {}
    for name, shape in (shapes | VISION_TENSORS).items():
        array = random.normal(size=shape).astype(np.float32)
        array = 1 + 0.2 * array if len(shape) == 1 else array / np.sqrt(shape[-1])
        arrays[name] = mx.array(array).astype(mx.bfloat16).astype(dtype)
    return arrays


def _released_name(parameter: str) -> str:
    return parameter.removesuffix(".weight") if ".experts." in parameter else parameter


def write_checkpoint(
    folder: Path, values: Mapping[str, Any], *files: Mapping[str, mx.array]
) -> Path:
    """Write config.json and the tensors: one mapping makes model.safetensors, more make shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    if len(files) == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), dict(files[0]))
        return folder
    weight_map = {}
    for number, arrays in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        mx.save_safetensors(str(folder / name), dict(arrays))
        weight_map |= dict.fromkeys(arrays, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def load(
    folder: Path,
    values: Mapping[str, Any],
    *files: Mapping[str, mx.array],
    dtype: mx.Dtype = mx.float32,
) -> DiffusionGemma:
    """Write a checkpoint and load it."""
    write_checkpoint(folder, values, *files)
    return load_weights(read_config(folder), folder, dtype)


def is_matrix(name: str) -> bool:
    """True for the tensors that a converter may pack."""
    matrices = ("_proj.weight", "embed_tokens.weight", ".proj.weight", "_proj")
    return name.startswith("model.decoder.") and name.endswith(matrices)


def pack(
    arrays: Mapping[str, mx.array], how_of: Callable[[str], Quantization | None]
) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Quantise a checkpoint as the community's converters do.

    `how_of` says how the module at a path is packed. Returns the tensors in the community's
    layout, and the float32 tensors that they stand for in the released one.
    """
    packed, unpacked = {}, {}
    for name, array in arrays.items():
        path = name.removesuffix(".weight")
        how = how_of(path) if is_matrix(name) else None
        if how is None:
            packed[name] = array
            unpacked[name] = array.astype(mx.float32)
            continue
        weight, scales, *biases = mx.quantize(array, how.group_size, how.bits, mode=how.mode)
        packed |= {f"{path}.weight": weight, f"{path}.scales": scales}
        packed |= {f"{path}.biases": bias for bias in biases}
        if how.has_biases:
            scales, biases = scales.astype(mx.float32), [biases[0].astype(mx.float32)]
        unpacked[name] = mx.dequantize(
            weight,
            scales,
            *biases,
            group_size=how.group_size,
            bits=how.bits,
            mode=how.mode,
            dtype=mx.float32,
        )
    return packed, unpacked


def table(
    default: Quantization, overrides: Mapping[str, Quantization | bool] | None = None
) -> dict[str, Any]:
    """The `quantization` object of config.json; an override that is affine leaves `mode` out."""
    entries: dict[str, Any] = _entry(default)
    for path, how in (overrides or {}).items():
        entries[path] = how if isinstance(how, bool) else _entry(how)
    return entries


def _entry(how: Quantization) -> dict[str, Any]:
    entry: dict[str, Any] = {"group_size": how.group_size, "bits": how.bits}
    return entry if how.mode == "affine" else entry | {"mode": how.mode}
