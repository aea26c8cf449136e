"""The files of a checkpoint folder besides its tensors: which are copied, which are missing."""

import shutil
from pathlib import Path

from mlx_diffusiongemma.config import read_json

# Copied as they are when the source has them.
_COPIED = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("generation_config.json", "LICENSE", "LICENSE.txt", "NOTICE"),
)
# What a whole checkpoint has: any name of a row will do.
_EXPECTED = (
    ("tokenizer.json", "tokenizer.model"),
    ("tokenizer_config.json",),
    ("chat_template.jinja", "chat_template.json"),
    ("generation_config.json",),
)
_FOR_IMAGES = ("processor_config.json", "preprocessor_config.json")


def copied_files(source: Path) -> tuple[str, ...]:
    """Names of the files in `source` that belong to every form of the checkpoint."""
    return tuple(name for name in _COPIED if (source / name).is_file())


def missing_files(source: Path, *, for_images: bool) -> tuple[str, ...]:
    """Names of files that a whole checkpoint has and `source` lacks."""
    here = set(copied_files(source))
    rows = [*_EXPECTED, _FOR_IMAGES] if for_images else list(_EXPECTED)
    tokenizer = source / "tokenizer_config.json"
    if tokenizer.is_file() and read_json(tokenizer).get("chat_template"):
        here.add("chat_template.jinja")
    return tuple(row[0] for row in rows if not here & set(row))


def copy_files(source: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Copy files from one checkpoint folder to another; follows the links of a Hub cache."""
    for name in names:
        shutil.copyfile(source / name, folder / name)
