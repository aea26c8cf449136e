"""Which checkpoint it is: its architecture, its name without any path, a digest of its weights."""

import hashlib
from pathlib import Path

from mlx_diffusiongemma.checkpoint import read_tensors
from mlx_diffusiongemma.config import read_config
from mlx_diffusiongemma.convert.conversion import hub_name
from mlx_diffusiongemma.convert.source import Source
from mlx_diffusiongemma.errors import TraceError
from mlx_diffusiongemma.hub import DEMO
from mlx_diffusiongemma.hub_cache import is_commit
from mlx_diffusiongemma.parity.trace import Architecture, ModelFacts

_SAMPLE_BYTES = 64


def model_facts(folder: Path, name: str) -> ModelFacts:
    """What a trace says about the checkpoint in `folder`, which the user called `name`.

    A folder has no name in it: its path would say whose machine it was.
    """
    public = DEMO if name == DEMO else hub_name(name) or ""
    return ModelFacts(
        name=public,
        revision=folder.name if public and is_commit(folder.name) else "",
        weights=_weights_digest(folder),
        architecture=Architecture.of(read_config(folder)),
    )


def check_same_model(recorded: ModelFacts, ours: ModelFacts) -> None:
    """TraceError when a trace of one model says nothing about the other."""
    differences = recorded.architecture.differences(ours.architecture)
    if differences:
        shown = "; ".join(differences[:3])
        raise TraceError(
            f"the trace is of another model: here {shown}",
            hint="check the model that was recorded, or a conversion of it",
        )


def _weights_digest(folder: Path) -> str:
    """Of sizes, headers and some bytes of every tensor: 50 GB take seconds, not minutes."""
    digest = hashlib.sha256()
    with Source() as source:
        for file in sorted({info.file for info in read_tensors(folder).values()}):
            for sample in source.samples(file, _SAMPLE_BYTES):
                digest.update(sample)
            source.close(file)
    return digest.hexdigest()
