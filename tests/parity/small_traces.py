"""Small suites for the parity kit's tests, and recordings of tiny models that take a second."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from recordings import FIXTURES, tiny_folder

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.config import read_config, read_generation_config
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.ours import OurModel
from mlx_diffusiongemma.parity.recording import record
from mlx_diffusiongemma.parity.suite import SMALL, Inputs, fresh_inputs
from mlx_diffusiongemma.parity.trace import Trace
from mlx_diffusiongemma.parity.trace_file import read_trace

TRACES = FIXTURES / "traces"
SMALL_SUITE = SMALL
# Random models never converge: a few steps are enough.
FEW_STEPS = SamplerSettings(max_denoising_steps=4, t_min=0.05, t_max=0.1, entropy_bound=1.0)


def tiny_inputs(name: str, *, seed: int = 0) -> Inputs:
    """The small suite for a tiny model, with short generations."""
    folder = tiny_folder(name)
    generation = replace(read_generation_config(folder), sampler=FEW_STEPS)
    return fresh_inputs(SMALL_SUITE, read_config(folder), generation, None, seed=seed)


def folder_of(name: str) -> Path:
    """Where the model of a trace in the fixtures lies."""
    return hub.resolve(hub.DEMO) if name == "demo" else tiny_folder(name)


@cache
def random_trace() -> Trace:
    """A trace of a tiny model, recorded from ours."""
    folder = tiny_folder("small_window")
    return record(OurModel.open(folder, str(folder)), tiny_inputs("small_window"))


@cache
def shipped(name: str) -> Trace:
    """A trace that transformers recorded."""
    return read_trace(TRACES / f"{name}.safetensors")


def ours(model: DiffusionGemma, name: str) -> OurModel:
    """A loaded model, perhaps a broken one, as the subject of a check."""
    return OurModel(model, model_facts(folder_of(name), name))
