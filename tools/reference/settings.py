"""Arguments of one recorded generation; no torch, so that tests read them anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sampler's numbers under transformers' names; the pad token is always 0."""

    max_new_tokens: int
    max_denoising_steps: int
    entropy_bound: float
    t_min: float
    t_max: float
    stability_threshold: int
    confidence_threshold: float
    eos_token_id: tuple[int, ...]
