"""A mid-size random checkpoint in float32, so that step time can be measured without a download."""

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.model import DiffusionGemma

_SLIDING, _FULL = "sliding_attention", "full_attention"
CONFIG = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "dtype": "float32",
    "canvas_length": 256,
    "tie_word_embeddings": True,
    "vision_config": None,
    "text_config": {
        "model_type": "diffusion_gemma_text",
        "vocab_size": 32768,
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 2,
        "head_dim": 64,
        "global_head_dim": 128,
        "sliding_window": 512,
        "layer_types": ([_SLIDING] * 5 + [_FULL]) * 2,
        "num_experts": 32,
        "top_k_experts": 4,
        "moe_intermediate_size": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "use_bidirectional_attention": "vision",
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            _FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
    },
}


def write_checkpoint(folder: Path) -> None:
    """Write the checkpoint into `folder`, with the same weights every time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    key = mx.random.key(0)
    weights = {}
    for name, array in tree_flatten(DiffusionGemma(parse_config(CONFIG)).parameters()):
        key, own = mx.random.split(key)
        if array.ndim == 1:
            weights[name] = mx.full(array.shape, 0.9)
        else:
            weights[name] = mx.random.normal(array.shape, key=own) * array.shape[-1] ** -0.5
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
