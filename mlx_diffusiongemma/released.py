"""The released model's numbers: sizes, estimates and synthetic weights of it need no download.

Source: config.json and generation_config.json of google/diffusiongemma-26B-A4B-it, as far as they
decide shapes and arithmetic.
"""

from typing import Any

from mlx_diffusiongemma.config import GenerationConfig, ModelConfig, parse_config
from mlx_diffusiongemma.options import SamplerSettings

NAME = "google/diffusiongemma-26B-A4B-it"
LAYERS = 30
VOCAB_SIZE = 262_144
_SLIDING, _FULL = "sliding_attention", "full_attention"
_FULL_EVERY = 6
_ENDS = (1, 50, 106)


def released_values(*, layers: int = LAYERS, vocab_size: int = VOCAB_SIZE) -> dict[str, Any]:
    """The object of its config.json; with fewer layers or tokens, everything else stays as it is.

    The last layer is full in any case, as the reference makes it.
    """
    kinds = [_SLIDING if (index + 1) % _FULL_EVERY else _FULL for index in range(layers - 1)]
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "dtype": "bfloat16",
        "canvas_length": 256,
        "boi_token_id": 255_999,
        "eoi_token_id": 258_882,
        "image_token_id": 258_880,
        "tie_word_embeddings": True,
        "vision_config": {"model_type": "gemma4_vision"},
        "text_config": {
            "model_type": "diffusion_gemma_text",
            "vocab_size": vocab_size,
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_hidden_layers": layers,
            "layer_types": [*kinds, _FULL],
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 1024,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-6,
            "final_logit_softcapping": 30.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "use_bidirectional_attention": "vision",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
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


def released_config() -> ModelConfig:
    """Its architecture."""
    return parse_config(released_values())


def released_generation() -> GenerationConfig:
    """Its sampler, which is the reference's default, and its end tokens."""
    return GenerationConfig(sampler=SamplerSettings(), eos_token_ids=frozenset(_ENDS))
