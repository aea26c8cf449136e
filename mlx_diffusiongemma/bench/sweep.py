"""Accuracy against time and steps: one task, answered with many settings of the dial.

    settings x examples --> Runtime.generate --> right or wrong, seconds, steps --> one point each

Every example is answered with all settings in turn before the next one, so that a machine that is
busy for a while is so for all of them alike.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from mlx_diffusiongemma.bench.tasks import Example
from mlx_diffusiongemma.events import GenerationResult
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.presets import PRESETS
from mlx_diffusiongemma.runtime import Runtime
from mlx_diffusiongemma.version import __version__


@dataclass(frozen=True)
class Setting:
    """A point to measure; `kind` is the curve or group that it belongs to in a drawing."""

    name: str
    kind: str
    options: GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one setting came to.

    Attributes:
        name, kind: see `Setting`.
        right, count: answers that were right, of how many.
        low, high: 95 % Wilson interval of the share.
        seconds: median time of an answer, prompt included.
        seconds_low, seconds_high: its quartiles.
        passes: mean number of passes for an answer: denoising steps, or tokens in mode "ar".
        tokens_per_second: all generated tokens by all time, prompts included.
    """

    name: str
    kind: str
    right: int
    count: int
    low: float
    high: float
    seconds: float
    seconds_low: float
    seconds_high: float
    passes: float
    tokens_per_second: float

    @property
    def share(self) -> float:
        """The share of right answers."""
        return self.right / self.count


def settings(
    steps: Sequence[int],
    *,
    max_tokens: int,
    presets: bool,
    autoregressive: bool = True,
    fast_self_conditioning: bool = False,
) -> list[Setting]:
    """The points of a sweep: step limits, the longest with fast self-conditioning, then presets,
    then the same weights left to right."""
    options = partial(GenerationOptions, max_tokens=max_tokens)
    points = [
        Setting(f"{n} step{'s' * (n != 1)}", "steps", options(max_denoising_steps=n)) for n in steps
    ]
    if fast_self_conditioning:
        most = max(steps)
        fast = options(max_denoising_steps=most, fast_self_conditioning=True)
        points.append(Setting(f"{most} steps, --fast-sc", "fast-sc", fast))
    if presets:
        points += [Setting(name, "preset", options(preset=name)) for name in PRESETS]
    if autoregressive:
        points.append(Setting("left to right", "ar", options(mode="ar")))
    return points


def run_sweep(
    runtime: Runtime,
    points: Sequence[Setting],
    examples: Sequence[Example],
    *,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Point]:
    """Answer every example with every setting; `progress` is told how many examples are done."""
    results: list[list[GenerationResult]] = [[] for _ in points]
    for point in points:  # what is computed for the first time takes longer
        runtime.generate(examples[0].prompt, _seeded(point.options, seed))
    for number, example in enumerate(examples):
        for point, answers in zip(points, results, strict=True):
            options = _seeded(point.options, seed + number)
            answers.append(runtime.generate(example.prompt, options))
        progress(number + 1)
    return [
        summarise(point, answers, examples) for point, answers in zip(points, results, strict=True)
    ]


def summarise(
    point: Setting, answers: Sequence[GenerationResult], examples: Sequence[Example]
) -> Point:
    """The numbers of one setting."""
    right = sum(
        example.is_right(answer.text) for example, answer in zip(examples, answers, strict=True)
    )
    seconds = [_seconds(answer) for answer in answers]
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    tokens = sum(answer.stats.generated_tokens for answer in answers)
    below, above = wilson(right, len(answers))
    return Point(
        name=point.name,
        kind=point.kind,
        right=right,
        count=len(answers),
        low=below,
        high=above,
        seconds=middle,
        seconds_low=low,
        seconds_high=high,
        passes=statistics.mean(_passes(answer) for answer in answers),
        tokens_per_second=tokens / sum(seconds),
    )


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share. Source: Wilson 1927."""
    z = 1.959964
    middle = (right + z * z / 2) / (count + z * z)
    spread = z / (count + z * z) * math.sqrt(right * (count - right) / count + z * z / 4)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def table(points: Sequence[Point]) -> Iterator[str]:
    """The points as lines of a Markdown table."""
    yield "| setting | right | 95 % interval | seconds (quartiles) | passes | tokens/s |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for point in points:
        quartiles = f"{point.seconds_low:.3f} - {point.seconds_high:.3f}"
        yield (
            f"| {point.name} | {point.right}/{point.count} | {point.low:.1%} - {point.high:.1%} "
            f"| {point.seconds:.3f} ({quartiles}) | {point.passes:.2f} "
            f"| {point.tokens_per_second:.0f} |"
        )


def report(points: Sequence[Point], about: dict[str, Any]) -> dict[str, Any]:
    """The sweep as JSON: what was measured, where, with which versions, and all points."""
    versions = {"mlx-diffusiongemma": __version__, "mlx": version("mlx")}
    return about | {
        "versions": versions,
        "points": [asdict(point) | {"share": point.share} for point in points],
    }


def _seeded(options: GenerationOptions, seed: int) -> GenerationOptions:
    return GenerationOptions(**vars(options) | {"seed": seed})


def _seconds(answer: GenerationResult) -> float:
    stats = answer.stats
    return stats.prefill_seconds + stats.denoising_seconds + stats.commit_seconds


def _passes(answer: GenerationResult) -> int:
    stats = answer.stats
    return stats.generated_tokens if stats.mode == "ar" else sum(stats.denoising_steps)
