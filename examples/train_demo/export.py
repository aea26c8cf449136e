"""Write a trained network as a normal DiffusionGemma checkpoint that `transformers` loads.

Images are not trained: a tiny random vision tower is added, because the format has no
text-only form.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from make_tokenizer import BOS, CONTROL_IDS, END_OF_TURN, EOS, PAD
from network import CANVAS_LENGTH, SOFTCAP, Layer, Network, Shape
from safetensors.torch import save_file

STOP_IDS = [EOS, END_OF_TURN, CONTROL_IDS["<|tool_response>"]]
GENERATION_CONFIG = {
    "max_new_tokens": 128,
    "max_denoising_steps": 24,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    "t_min": 0.3,
    "t_max": 0.6,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "bos_token_id": BOS,
    "pad_token_id": PAD,
    "eos_token_id": STOP_IDS,
}
VISION_CONFIG = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 64,
    "default_output_length": 16,
    "dtype": "bfloat16",
}


def config(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a network of this shape."""
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense,
        "num_hidden_layers": len(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_global_key_value_heads": shape.full_kv_heads,
        "head_dim": shape.head_dim,
        "global_head_dim": shape.full_head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": shape.window,
        "layer_types": [kinds[kind] for kind in shape.layers],
        "final_logit_softcapping": SOFTCAP,
        "use_bidirectional_attention": "vision",
        "num_experts": shape.experts,
        "top_k_experts": shape.top_k,
        "moe_intermediate_size": shape.expert,
        "dtype": "bfloat16",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.rope_theta},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": shape.full_rope_share,
                "rope_theta": shape.full_rope_theta,
            },
        },
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "dtype": "bfloat16",
        "canvas_length": CANVAS_LENGTH,
        "boi_token_id": CONTROL_IDS["<|image>"],
        "eoi_token_id": CONTROL_IDS["<image|>"],
        "image_token_id": CONTROL_IDS["<|image|>"],
        "eos_token_id": STOP_IDS,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": VISION_CONFIG,
    }


def layer_tensors(layer: Layer, shape: Shape) -> dict[str, torch.Tensor]:
    """The tensors of one layer under their released names."""
    split = (shape.experts, shape.expert)
    gate_up = [layer.expert_gate.unflatten(0, split), layer.expert_up.unflatten(0, split)]
    tensors = {
        "self_attn.q_proj.weight": layer.q,
        "self_attn.k_proj.weight": layer.k,
        "self_attn.o_proj.weight": layer.o,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_attention_norm,
        "pre_feedforward_layernorm.weight": layer.dense_norm,
        "post_feedforward_layernorm_1.weight": layer.post_dense_norm,
        "pre_feedforward_layernorm_2.weight": layer.routed_norm,
        "post_feedforward_layernorm_2.weight": layer.post_routed_norm,
        "post_feedforward_layernorm.weight": layer.post_norm,
        "mlp.gate_proj.weight": layer.gate,
        "mlp.up_proj.weight": layer.up,
        "mlp.down_proj.weight": layer.down,
        "router.proj.weight": layer.router,
        "router.scale": layer.router_scale,
        "router.per_expert_scale": layer.per_expert_scale,
        "experts.gate_up_proj": torch.cat(gate_up, 1),
        "experts.down_proj": layer.expert_down.unflatten(1, split).transpose(0, 1),
        "layer_scalar": layer.decoder_scalar,
    }
    if layer.v is not None:
        tensors["self_attn.v_proj.weight"] = layer.v
    return tensors


def text_tensors(network: Network) -> dict[str, torch.Tensor]:
    """All trained tensors: the decoder's, and the encoder's layer scalars."""
    tensors = {
        "model.decoder.embed_tokens.weight": network.embedding,
        "model.decoder.norm.weight": network.norm,
        "model.decoder.self_conditioning.pre_norm.weight": network.soft_norm,
        "model.decoder.self_conditioning.gate_proj.weight": network.soft_gate,
        "model.decoder.self_conditioning.up_proj.weight": network.soft_up,
        "model.decoder.self_conditioning.down_proj.weight": network.soft_down,
    }
    for number, layer in enumerate(network.layers):
        for name, tensor in layer_tensors(layer, network.shape).items():
            tensors[f"model.decoder.layers.{number}.{name}"] = tensor
        tensors[f"model.encoder.language_model.layers.{number}.layer_scalar"] = layer.encoder_scalar
    return tensors


def vision_tensors(checkpoint_config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A random vision tower, the same every time."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DiffusionGemmaForBlockDiffusion(DiffusionGemmaConfig(**checkpoint_config))
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if ".vision_tower." in name or ".embed_vision." in name
    }


def export(network: Network, tokenizer_folder: Path, folder: Path) -> None:
    """Write the checkpoint in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    described = config(network.shape)
    tensors = {**text_tensors(network), **vision_tensors(described)}
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()
    }
    weights = folder / "model.safetensors"
    save_file(tensors, str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_folder / name, folder / name)
