"""The files of a checkpoint folder besides its tensors: which are copied, which are missing."""

import os
from pathlib import Path

from mlx_diffusiongemma.config import read_json
from mlx_diffusiongemma.convert.records import Layout
from mlx_diffusiongemma.errors import CheckpointError

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
_NO_IMAGES = "the image side, which transformers fills with random numbers"
_FOR_IMAGES = ("processor_config.json", "preprocessor_config.json")


def copied_files(source: Path) -> tuple[str, ...]:
    """Names of the files in `source` that belong to every form of the checkpoint."""
    return tuple(name for name in _COPIED if (source / name).is_file())


def missing_files(source: Path, *, has_images: bool, layout: Layout) -> tuple[str, ...]:
    """What a whole checkpoint has and this one will lack, mostly names of files.

    `has_images`: whether the tensors of the image side are there.
    """
    here = set(copied_files(source))
    rows = [*_EXPECTED, _FOR_IMAGES] if has_images else list(_EXPECTED)
    tokenizer = source / "tokenizer_config.json"
    if tokenizer.is_file() and read_json(tokenizer).get("chat_template"):
        here.add("chat_template.jinja")
    missing = tuple(row[0] for row in rows if not here & set(row))
    return missing if has_images or layout == "mlx" else (*missing, _NO_IMAGES)


def copy_files(source: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Copy files from one checkpoint folder to another, durably; follows a Hub cache's links.

    CheckpointError when one cannot be read.
    """
    for name in names:
        try:
            content = (source / name).read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"`{source / name}` cannot be read: {error.strerror}",
                hint="check the rights to this file, then go on with `--resume`",
            ) from None
        write_file(folder / name, content)


def write_file(path: Path, content: bytes) -> None:
    """Write a small file and put it on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
