"""How far a replay stays from a tie, measured against float32's own noise.

Only where no decision hangs on rounding is it fair to ask another implementation for the same
tokens. The noise is the difference between the reference in float32 and in float64 on the same
draws; every decision must clear it `SAFETY` times over.
"""

from dataclasses import dataclass

import numpy as np
from transformers import DiffusionGemmaForBlockDiffusion

from tools.reference import replay
from tools.reference.replay import Replay
from tools.reference.settings import Settings

SAFETY = 20.0
_DECISIONS = ("argmax", "accepted", "steps", "converged", "sequence")


class TieError(Exception):
    """A generation hangs on rounding; another seed will do."""


@dataclass(frozen=True)
class Margins:
    """Smallest distance of each kind of decision from a tie, and the noise in the same unit.

    argmax in logits after temperature; acceptance and stopping in nats.
    """

    argmax: float
    argmax_noise: float
    acceptance: float
    stopping: float
    entropy_noise: float

    @property
    def are_safe(self) -> bool:
        """Whether each margin clears its noise by the factor `SAFETY`."""
        decisions = min(self.acceptance, self.stopping)
        return self.argmax > SAFETY * self.argmax_noise and decisions > SAFETY * self.entropy_noise


def measure(logits: np.ndarray, exact_logits: np.ndarray, settings: Settings) -> Margins:
    """Margins of a replay from its scaled logits [N, L, V] in float32 and in float64."""
    top = np.sort(exact_logits, axis=-1)
    exact = np.sort(replay.entropy(exact_logits), axis=-1)
    rows = np.arange(len(exact))
    before = np.cumsum(exact, axis=-1) - exact
    count = (before <= settings.entropy_bound).sum(-1)
    padded = np.pad(exact, ((0, 0), (0, 1)), constant_values=np.inf)
    across_the_cut = padded[rows, count] - padded[rows, count - 1]
    acceptance = min(np.abs(before - settings.entropy_bound).min(), across_the_cut.min())
    noise = np.abs(replay.entropy(logits) - replay.entropy(exact_logits))
    return Margins(
        argmax=float((top[..., -1] - top[..., -2]).min()),
        argmax_noise=float(np.abs(logits - exact_logits).max()),
        acceptance=float(acceptance),
        stopping=float(np.abs(exact.mean(-1) - settings.confidence_threshold).min()),
        entropy_noise=float(noise.max()),
    )


def record_safely(
    model: DiffusionGemmaForBlockDiffusion,
    exact_model: DiffusionGemmaForBlockDiffusion,
    prompt: np.ndarray,
    settings: Settings,
    *,
    first_seed: int,
    tries: int = 40,
) -> tuple[Replay, Margins, int]:
    """The first replay, from `first_seed` upwards, that hangs on no tie; and its seed."""
    for seed in range(first_seed, first_seed + tries):
        recorded, logits = replay.record(model, prompt, settings, seed=seed)
        exact, exact_logits = replay.record(exact_model, prompt, settings, given=recorded)
        if any(not np.array_equal(recorded[name], exact[name]) for name in _DECISIONS):
            continue
        margins = measure(logits, exact_logits, settings)
        if margins.are_safe:
            return recorded, margins, seed
    raise TieError(f"seeds {first_seed} to {first_seed + tries - 1} all hang on a tie")
