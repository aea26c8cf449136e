"""Which prompts, settings and seeds the fixtures and the live checks are made of. Pure data."""

from dataclasses import dataclass, replace

from mlx_diffusiongemma.options import SamplerSettings
from tools.reference.settings import Settings


@dataclass(frozen=True)
class PassCase:
    """One prompt through both passes: its length, and how many such prompts at once."""

    length: int
    batch: int = 1

    @property
    def name(self) -> str:
        """The group of arrays in the fixture."""
        return (
            f"length-{self.length}"
            if self.batch == 1
            else f"length-{self.length}-batch-{self.batch}"
        )


def _around(window: int) -> tuple[PassCase, ...]:
    lengths = (1, window - 2, window - 1, window, window + 1, 2 * window + 3)
    return tuple(PassCase(length) for length in lengths)


# The wide window is for prompts and canvases inside it; 94 ends inside and its block crosses.
PASS_CASES = {
    "small_window": _around(8),
    "middle_window": _around(24),
    "wide_window": (PassCase(1), PassCase(17, batch=2), PassCase(94), PassCase(101)),
}


@dataclass(frozen=True)
class ReplayCase:
    """One generation of a tiny model.

    Attributes:
        eos_in_block: makes a token of this block, and of none before, the end token.
    """

    name: str
    model: str
    prompt_length: int
    settings: Settings
    seed: int
    eos_in_block: int | None = None


_RESTLESS = Settings(
    max_new_tokens=36,
    max_denoising_steps=8,
    entropy_bound=1.0,
    t_min=0.05,
    t_max=0.1,
    stability_threshold=1,
    confidence_threshold=0.05,
    eos_token_id=(320,),
)
_CALM = replace(
    _RESTLESS,
    max_new_tokens=48,
    max_denoising_steps=24,
    t_min=0.02,
    t_max=0.05,
    confidence_threshold=0.2,
    eos_token_id=(202,),
)
_CALM_WIDE = replace(
    _CALM, max_new_tokens=32, entropy_bound=0.1, t_min=0.04, t_max=0.08, eos_token_id=(256,)
)

REPLAY_CASES = (
    ReplayCase("step_cap", "small_window", 9, _RESTLESS, 100),
    ReplayCase("partial_budget", "small_window", 3, replace(_RESTLESS, max_new_tokens=31), 200),
    ReplayCase("one_step", "small_window", 20, replace(_RESTLESS, max_denoising_steps=1), 300),
    ReplayCase("early_stop", "middle_window", 22, _CALM, 400),
    ReplayCase("tight_bound", "middle_window", 30, replace(_CALM, entropy_bound=0.1), 500),
    ReplayCase("end_token", "wide_window", 5, _CALM_WIDE, 600, eos_in_block=1),
    ReplayCase("no_stability", "wide_window", 90, replace(_CALM_WIDE, stability_threshold=0), 700),
    ReplayCase("two_stable", "wide_window", 40, replace(_CALM_WIDE, stability_threshold=2), 800),
)

# What the embedded demo model is asked; the settings are those of its generation_config.json.
DEMO_PROMPTS = {
    "sudoku": "Solve this sudoku:\n1.3.\n..1.\n.1..\n4..1",
    "story": "Tell me a story about a fox.",
    "chat": "Who are you?",
    "colour": "What colour is the sky?",
}

# Tiny models that read 31 tokens one by one, past their windows, and the seed of these.
LEFT_TO_RIGHT = {"small_window": 900, "middle_window": 901}

# Traces of the parity kit: model -> sampler; None is the demo model with its own. Random models
# never converge, so a few steps must do.
_FEW_STEPS = SamplerSettings(max_denoising_steps=8, entropy_bound=1.0, t_min=0.05, t_max=0.1)
TRACES = {"demo": None, "small_window": _FEW_STEPS, "wide_window": _FEW_STEPS}
