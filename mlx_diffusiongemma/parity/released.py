"""The released model's numbers, as far as they decide how large a trace of it is."""

from mlx_diffusiongemma.config import GenerationConfig, ModelConfig, parse_config
from mlx_diffusiongemma.options import SamplerSettings

NAME = "google/diffusiongemma-26B-A4B-it"
_TEXT = {
    "vocab_size": 262_144,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,
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
}
_ENDS = (1, 50, 106)


def released_config() -> ModelConfig:
    """The architecture of google/diffusiongemma-26B-A4B-it."""
    return parse_config({"model_type": "diffusion_gemma", "text_config": _TEXT})


def released_generation() -> GenerationConfig:
    """Its sampler, which is the reference's default, and its end tokens."""
    return GenerationConfig(sampler=SamplerSettings(), eos_token_ids=frozenset(_ENDS))
