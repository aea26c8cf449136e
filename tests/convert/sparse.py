"""Checkpoints of any size that take no room: real headers, and holes where the values would be."""

import json
import struct
from pathlib import Path

from mlx.utils import tree_flatten
from tiny import VISION_TENSORS

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.model import DiffusionGemma


def write_headers(folder: Path, values: dict) -> Path:
    """A bfloat16 checkpoint of the model of `values` under the released names, in one file."""
    shapes = {
        name.removesuffix(".weight") if ".experts." in name else name: array.shape
        for name, array in tree_flatten(DiffusionGemma(parse_config(values)).parameters())
    }
    header, end = {}, 0
    for name, shape in (shapes | VISION_TENSORS).items():
        nbytes = 2
        for dim in shape:
            nbytes *= dim
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder
