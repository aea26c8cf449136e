"""Tiny DiffusionGemma checkpoints with random weights in which every quantity matters.

All values are bfloat16 numbers, so float32 arithmetic on either side starts from the same weights.
Every norm weight, scale and scalar differs from 1, and the two layer scalars of a layer differ from
each other, so that leaving one out or confusing two shows in the logits.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 8,
    "default_output_length": 4,
}


@dataclass(frozen=True)
class TinyModel:
    """One checkpoint: sizes, random seed, and which of the layouts it is written in.

    Attributes:
        layers: "s" for a sliding layer, "f" for a full one.
        layout: "released" (one file, `global_head_dim`), "saved" (as `save_pretrained` writes it,
            `per_layer_config`) or "sharded" (two shards and an index, tied tensors repeated).
    """

    name: str
    layout: str
    seed: int
    layers: str
    sliding_window: int
    canvas_length: int
    vocab_size: int
    hidden_size: int = 64
    intermediate_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_global_key_value_heads: int = 1
    head_dim: int = 16
    global_head_dim: int = 32
    num_experts: int = 8
    top_k_experts: int = 2
    moe_intermediate_size: int = 16
    rms_norm_eps: float = 1e-6
    final_logit_softcapping: float = 30.0
    sliding_theta: float = 10_000.0
    full_theta: float = 1_000_000.0
    partial_rotary_factor: float = 0.25

    def config(self) -> dict[str, Any]:
        """The config.json of this model in the released spelling."""
        names = {"s": "sliding_attention", "f": "full_attention"}
        sizes = (
            "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads "
            "num_global_key_value_heads head_dim global_head_dim rms_norm_eps sliding_window "
            "final_logit_softcapping num_experts top_k_experts moe_intermediate_size"
        )
        text = {name: vars(self)[name] for name in sizes.split()}
        text |= {
            "model_type": "diffusion_gemma_text",
            "num_hidden_layers": len(self.layers),
            "layer_types": [names[letter] for letter in self.layers],
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": self.sliding_theta},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": self.full_theta,
                    "partial_rotary_factor": self.partial_rotary_factor,
                },
            },
        }
        return {
            "architectures": ["DiffusionGemmaForBlockDiffusion"],
            "model_type": "diffusion_gemma",
            "dtype": "bfloat16",
            "canvas_length": self.canvas_length,
            "boi_token_id": 5,
            "eoi_token_id": 6,
            "image_token_id": 7,
            "tie_word_embeddings": True,
            "text_config": text,
            "vision_config": VISION,
        }


# Windows below, near and above the prompts and canvases that passes.py and replays.py use.
TINY_MODELS = (
    TinyModel(
        "small_window",
        layout="released",
        seed=11,
        layers="sfssf",
        sliding_window=8,
        canvas_length=12,
        vocab_size=321,
        final_logit_softcapping=3.0,
        rms_norm_eps=1e-5,
    ),
    TinyModel(
        "middle_window",
        layout="sharded",
        seed=12,
        layers="ssfsf",
        sliding_window=24,
        canvas_length=16,
        vocab_size=203,
        hidden_size=48,
        num_attention_heads=6,
        num_global_key_value_heads=2,
        global_head_dim=24,
        final_logit_softcapping=5.0,
        sliding_theta=500.0,
        full_theta=20_000.0,
        partial_rotary_factor=0.5,
    ),
    TinyModel(
        "wide_window",
        layout="saved",
        seed=13,
        layers="ssfsf",
        sliding_window=100,
        canvas_length=8,
        vocab_size=257,
        hidden_size=48,
        intermediate_size=80,
        head_dim=24,
        global_head_dim=48,
        num_experts=16,
        top_k_experts=4,
    ),
    TinyModel(  # every matrix divides into groups of 64, as quantisation wants it
        "group_64",
        layout="released",
        seed=14,
        layers="sf",
        sliding_window=8,
        canvas_length=8,
        vocab_size=131,
        num_experts=4,
        moe_intermediate_size=64,
    ),
)

# Every tensor's distribution by its name, the first match counts: uniform between the two numbers,
# or normal with the second one times fan_in ** -0.5 as its deviation. Layers, router and
# self-conditioning add little enough that rounding does not grow from step to step in a replay.
_DISTRIBUTIONS = (
    (r"decoder\.layers\.\d+\.layer_scalar", "uniform", 0.6, 1.3),
    (r"encoder\.language_model\.layers\.\d+\.layer_scalar", "uniform", 0.6, 1.3),
    (r"[qk]_norm\.weight", "uniform", 0.3, 1.0),
    (r"post_(attention|feedforward)_layernorm\.weight", "uniform", 0.2, 0.6),
    (r"norm(_\d)?\.weight", "uniform", 0.5, 1.5),
    (r"router\.(scale|per_expert_scale)", "uniform", 0.5, 1.5),
    (r"router\.proj\.weight", "normal", 0.0, 12.0),
    (r"gate_up_proj", "normal", 0.0, 1.5),
    (r"self_conditioning\.down_proj", "normal", 0.0, 0.3),
    ("", "normal", 0.0, 1.0),
)


def randomise(model: DiffusionGemmaForBlockDiffusion, seed: int) -> None:
    """Fill every parameter and layer scalar of `model` with random bfloat16 numbers, in place."""
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors |= {n: b for n, b in model.named_buffers() if n.endswith("layer_scalar")}
    for name, tensor in sorted(tensors.items()):
        kind, low, high = next(rule[1:] for rule in _DISTRIBUTIONS if re.search(rule[0], name))
        if kind == "uniform":
            values = torch.rand(tensor.shape, generator=generator) * (high - low) + low
        else:
            values = torch.randn(tensor.shape, generator=generator) * high
            values *= tensor.shape[-1] ** -0.5
        tensor.data.copy_(values.to(torch.bfloat16))


def build(tiny: TinyModel, folder: Path) -> None:
    """Write the checkpoint of `tiny` into `folder`, which it creates."""
    folder.mkdir(parents=True, exist_ok=True)
    model = DiffusionGemmaForBlockDiffusion(DiffusionGemmaConfig(**tiny.config()))
    randomise(model, tiny.seed)
    model.to(torch.bfloat16)
    if tiny.layout == "saved":
        model.save_pretrained(folder)
        return
    (folder / "config.json").write_text(json.dumps(tiny.config(), indent=1) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if tiny.layout == "sharded":
        _save_sharded(tensors, folder)
        return
    stored = {name: tensor for name, tensor in tensors.items() if not is_tied(name)}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def is_tied(name: str) -> bool:
    """Whether a tensor only repeats one of the decoder's."""
    encoder = name.startswith("model.encoder.language_model.")
    return name == "lm_head.weight" or (encoder and not name.endswith(".layer_scalar"))


def _save_sharded(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Two shards and an index; a layer's tensors lie in both, the tied repetitions are written."""
    shards: dict[str, dict[str, torch.Tensor]] = {}
    weight_map = {}
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        shard = f"model-{index % 2 + 1:05d}-of-00002.safetensors"
        shards.setdefault(shard, {})[name] = tensor.clone()
        weight_map[name] = shard
    for shard, content in shards.items():
        save_file(content, folder / shard, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
