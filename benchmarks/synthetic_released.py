"""Write a random checkpoint with the released model's names and layer shapes, of 2.5 to 10 GB.

    python benchmarks/synthetic_released.py 4.8 FOLDER

Layers, experts and matrices have their real sizes, there are only fewer layers (and, at 2.5, half
of the vocabulary). The values are one random block over and over, which no converter notices.
"""

import argparse
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
from mlx.utils import tree_flatten

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.convert.records import OutputTensor
from mlx_diffusiongemma.convert.writer import header, in_file_order
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.released import released_values

SIZES = {"2.5": (1, 131_072), "4.8": (2, 262_144), "10": (5, 262_144)}  # GB -> layers, vocabulary
SHARD_BYTES = 2_000_000_000
BLOCK_VALUES = 8_000_009  # a prime, so that no two rows see the same part of the block
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_VISION_LAYER = "model.encoder.vision_tower.encoder.layers.0."
# The smallest image side that other converters accept; it is none of the model's 26 B parameters.
_VISION = {
    "model.encoder.embed_vision.embedding_projection.weight": (2816, 16),
    "model.encoder.vision_tower.patch_embedder.input_proj.weight": (16, 48),
    "model.encoder.vision_tower.patch_embedder.position_embedding_table": (2, 8, 16),
    **{
        f"{_VISION_LAYER}{name}.linear.weight": (16, 16)
        for name in (
            *("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"),
            *("self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"),
        )
    },
    **{
        f"{_VISION_LAYER}{name}.weight": (16,)
        for name in (
            *("input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"),
            *("pre_feedforward_layernorm", "self_attn.k_norm", "self_attn.q_norm"),
        )
    },
}
VISION_CONFIG = {
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


def config_values(layers: int, vocab_size: int) -> dict:
    """The released config.json with fewer layers, and the smallest image side."""
    images = {"boi_token_id": 5, "eoi_token_id": 6, "image_token_id": 7}
    values = released_values(layers=layers, vocab_size=vocab_size)
    return {**values, **images, "vision_config": VISION_CONFIG}


def tensors_of(values: dict) -> list[OutputTensor]:
    """Every tensor under its released name, sorted as Hugging Face's exporter sorts them."""
    model = DiffusionGemma(parse_config(values))  # lazy: shapes, no numbers
    shapes = {
        name.removesuffix(".weight") if ".experts." in name else name: array.shape
        for name, array in tree_flatten(model.parameters())
    }
    return [
        OutputTensor(name, "BF16", tuple(shape), 2 * math.prod(shape))
        for name, shape in sorted((shapes | _VISION).items())
    ]


def in_shards(tensors: Iterable[OutputTensor]) -> Iterator[list[OutputTensor]]:
    """Cut the list into files of at most SHARD_BYTES."""
    shard: list[OutputTensor] = []
    for tensor in tensors:
        if shard and sum(other.nbytes for other in shard) + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard


def random_block() -> np.ndarray:
    """bfloat16 bits of normal values with a deviation of 0.02."""
    values = np.random.default_rng(0).standard_normal(BLOCK_VALUES, np.float32) * 0.02
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_released(folder: Path, size: str) -> None:
    """Write config.json, tokenizer, shards and index of a checkpoint of about `size` GB."""
    folder.mkdir(parents=True)
    values = config_values(*SIZES[size])
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    demo = files("mlx_diffusiongemma") / "demo"
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes((demo / name).read_bytes())
    block = random_block()
    shards = list(in_shards(tensors_of(values)))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= {tensor.name: name for tensor in shard}
        ordered = in_file_order(shard)
        with (folder / name).open("wb") as file:
            file.write(header(ordered, {"format": "pt"}))
            missing = sum(tensor.nbytes for tensor in shard)
            while missing:
                missing -= file.write(block.data.cast("B")[:missing])
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def main() -> None:
    """Write one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES, help="about so many GB")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    write_released(arguments.folder, arguments.size)
    written = sum(path.stat().st_size for path in arguments.folder.iterdir())
    free = shutil.disk_usage(arguments.folder).free
    print(f"{arguments.folder}: {written / 1e9:.2f} GB written, {free / 1e9:.0f} GB left")


if __name__ == "__main__":
    main()
