"""Our generation loop on the draws of a recorded replay, and the comparison of the two.

The names are those of tools/reference/replay.py.
"""

import mlx.core as mx
import numpy as np
from recordings import Recording
from scripted import generate_blocks
from tolerances import REPLAYED_ENTROPY

from mlx_diffusiongemma.draws import DrawTrace, ReplayedDraws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import BlockCommitted, DenoisingStep
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import SamplerSettings


def differences(model: DiffusionGemma, recorded: Recording, settings: dict) -> list[str]:
    """What differs from the replay, in words; nothing when every decision is the same."""
    try:
        ours = run(model, recorded, settings)
    except GenerationError as error:
        return [f"steps: {error}"]
    found = [
        name
        for name in ("steps", "converged", "argmax", "accepted", "token_ids", "finish_reason")
        if not np.array_equal(ours[name], _expected(name, recorded, settings))
    ]
    if "steps" not in found and entropy_error(ours, recorded) > REPLAYED_ENTROPY:
        found.append("entropy")
    return found


def entropy_error(ours: Recording, recorded: Recording) -> float:
    """Largest difference of any position's entropy, in nats."""
    return float(np.abs(ours["entropy"] - recorded["entropy"]).max())


def run(model: DiffusionGemma, recorded: Recording, settings: dict) -> Recording:
    """Generate with the recorded draws; GenerationError when we ask for more of them."""
    trace = DrawTrace(*(_rows(recorded[name]) for name in ("initial", "candidates", "renoise")))
    names = "max_denoising_steps entropy_bound t_min t_max stability_threshold confidence_threshold"
    events = list(
        generate_blocks(
            model,
            recorded["prompt"][0].tolist(),
            draws=ReplayedDraws(trace),
            settings=SamplerSettings(**{name: settings[name] for name in names.split()}),
            max_tokens=settings["max_new_tokens"],
            eos_token_ids=frozenset(settings["eos_token_id"]),
        )
    )
    steps = [event for event in events if isinstance(event, DenoisingStep)]
    blocks = [event for event in events if isinstance(event, BlockCommitted)]
    return {
        "steps": np.array([block.denoising_steps for block in blocks]),
        "converged": np.array([block.converged for block in blocks]),
        "argmax": np.concatenate([np.array(step.argmax_canvas) for step in steps]),
        "accepted": np.concatenate([np.array(step.accepted) for step in steps]),
        "entropy": np.concatenate([np.array(step.entropy) for step in steps]),
        "token_ids": np.array([token for block in blocks for token in block.token_ids]),
        "finish_reason": np.array(blocks[-1].finish_reason),
    }


def _rows(array: np.ndarray) -> list[mx.array]:
    return [mx.array(row[None]) for row in array]


def _expected(name: str, recorded: Recording, settings: dict) -> np.ndarray:
    """The reference returns whole canvases with pads; the answer in them is what we return."""
    ended = np.isin(recorded["sequence"], settings["eos_token_id"])
    if name == "finish_reason":
        return np.array("stop" if ended.any() else "length")
    if name == "token_ids":
        end = int(ended.argmax()) if ended.any() else settings["max_new_tokens"]
        return recorded["sequence"][:end]
    return recorded[name]
