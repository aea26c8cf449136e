"""The reference's own `generate`, with every random draw and every decision noted.

A replay is a flat dict of arrays. C canvases of length L took `steps[c]` denoising steps each; the
rows of the per-step arrays follow one another, N of them in all:

    prompt int32 [1, S], initial int32 [C, L]          what it started from
    candidates, renoise int32 [N, L]                   what chance said
    argmax int32, accepted bool, entropy float32 [N, L]           what the model made of it
    steps int32 [C], converged bool [C], sequence int32 [C * L]   what came out, pads included
"""

from dataclasses import asdict

import numpy as np
import torch
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import generation_diffusion_gemma as reference

from tools.reference.settings import Settings

Replay = dict[str, np.ndarray]


def arguments(settings: Settings) -> dict[str, object]:
    """`settings` as `generate` takes them."""
    values = asdict(settings)
    values["sampler_config"] = reference.EntropyBoundSamplerConfig(values.pop("entropy_bound"))
    return values | {"eos_token_id": list(settings.eos_token_id), "pad_token_id": 0}


class _Sampler(reference.EntropyBoundSampler):
    """The reference's sampler, which notes its draws or takes those of an earlier replay."""

    def __init__(self, *args, given: Replay | None):
        super().__init__(*args)
        self.given = given
        self.notes: dict[str, list] = {
            name: []
            for name in ("initial", "candidates", "renoise", "accepted", "argmax", "logits")
        }
        self.steps: list[int] = []

    def _draw(self, name: str, batch_size: int, device: torch.device) -> torch.Tensor:
        if self.given is None:
            drawn = super().initialize_canvas(batch_size, device)
        else:
            drawn = torch.from_numpy(self.given[name][len(self.notes[name])][None]).long()
        self.notes[name].append(drawn)
        return drawn

    def initialize_canvas(self, batch_size, device):
        self.steps.append(0)
        return self._draw("initial", batch_size, device)

    def accept_canvas(self, current_canvas, denoiser_canvas, logits, cur_step):
        if self.given is not None:
            row = self.given["candidates"][len(self.notes["candidates"])]
            denoiser_canvas = torch.from_numpy(row[None]).long()
        accepted = super().accept_canvas(current_canvas, denoiser_canvas, logits, cur_step)
        self.notes["candidates"].append(denoiser_canvas)
        self.notes["accepted"].append(self.accepted_token_mask)
        self.notes["argmax"].append(logits.argmax(-1))
        self.notes["logits"].append(logits)
        self.steps[-1] += 1
        return accepted

    def renoise_canvas(self, accepted_canvas, cur_step):
        drawn = self._draw("renoise", *_batch(accepted_canvas))
        return torch.where(self.accepted_token_mask, accepted_canvas, drawn)


def _batch(canvas: torch.Tensor) -> tuple[int, torch.device]:
    return canvas.shape[0], canvas.device


class _Stopping(reference.StableAndConfidentStoppingCriteria):
    """The reference's stop rule, which notes its verdicts."""

    def __init__(self, *args):
        super().__init__(*args)
        self.verdicts: list[bool] = []

    def __call__(self, argmax_canvas, logits, **kwargs):
        verdict = super().__call__(argmax_canvas, logits, **kwargs)
        self.verdicts.append(bool(verdict.all()))
        return verdict


def record(
    model: DiffusionGemmaForBlockDiffusion,
    prompt: np.ndarray,
    settings: Settings,
    *,
    seed: int | None = None,
    given: Replay | None = None,
) -> tuple[Replay, np.ndarray]:
    """Generate from `prompt` [1, S]; chance comes from `seed`, or from the draws of `given`.

    Returns the replay and the temperature-scaled logits [N, L, V], which are too big to keep.
    """
    text = model.config.text_config
    steps = settings.max_denoising_steps
    bound = reference.EntropyBoundSamplerConfig(settings.entropy_bound)
    sampler = _Sampler(bound, model.config.canvas_length, text.vocab_size, steps, given=given)
    stopping = _Stopping(settings.stability_threshold, settings.confidence_threshold)
    model._prepare_sampler = lambda _config: sampler
    model._prepare_diffusion_stopping_criteria = lambda _config: stopping
    if seed is not None:
        torch.manual_seed(seed)
    ids = torch.from_numpy(prompt).long()
    output = model.generate(ids, generation_config=None, **arguments(settings))
    notes = {name: torch.cat(values).numpy() for name, values in sampler.notes.items()}
    logits = notes.pop("logits")
    last = np.cumsum(sampler.steps) - 1
    replay = {
        "prompt": prompt.astype(np.int32),
        "entropy": entropy(logits).astype(np.float32),
        "steps": np.array(sampler.steps, np.int32),
        "converged": np.array(stopping.verdicts)[last],
        "sequence": output.sequences[0, prompt.shape[1] :].numpy().astype(np.int32),
    }
    for name, values in notes.items():
        replay[name] = values if name == "accepted" else values.astype(np.int32)
    return replay, logits


def entropy(logits: np.ndarray) -> np.ndarray:
    """Entropy in nats over the last axis, in float64."""
    scaled = torch.from_numpy(logits).double()
    return torch.distributions.Categorical(logits=scaled).entropy().numpy()
