"""Is a source still the one that a conversion was begun with: digests of samples of its files.

Hashing 50 GB would take as long as converting them. Size, header and a few bytes of the beginning,
middle and end of every tensor show another file and every tensor that was trained, and are the same
wherever the file was copied to. A single number that was edited by hand is not seen.
"""

import hashlib
from pathlib import Path

from mlx_diffusiongemma.convert.records import ConversionPlan
from mlx_diffusiongemma.convert.source import Source

_SAMPLE_BYTES = 64


def source_digests(plan: ConversionPlan) -> dict[str, str]:
    """Digest of every source file that the plan reads, by name.

    CheckpointError when one cannot be read.
    """
    files = set().union(*(tensor.files for tensor in plan.tensors))
    with Source() as source:
        return {file.name: _digest(source, file) for file in sorted(files)}


def changed_files(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Names of the files that are not what they were."""
    return sorted(name for name in before | now if before.get(name) != now.get(name))


def _digest(source: Source, file: Path) -> str:
    digest = hashlib.sha256()
    for sample in source.samples(file, _SAMPLE_BYTES):
        digest.update(sample)
    return digest.hexdigest()
