"""One checkpoint, the same prompts, several ways to answer them: side by side in one run.

    prompt 1:  ours, left to right, mlx-vlm ...     each way once, then the next prompt
    prompt 2:  left to right, mlx-vlm, ..., ours    who begins changes

So a machine that is busy for a while, or changes its speed, does so for all of them alike, and a
ratio is taken within a prompt. Prompts are text: canvases of random tokens never converge, and
would hide how many steps a canvas takes.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_diffusiongemma.bench.process import WorkerProcess
from mlx_diffusiongemma.bench.sweep import wilson

OURS, THEIRS = "mlx-diffusiongemma", "mlx-vlm"
# What a way to answer costs beside another one; each is a property of `Answer`.
RATIOS = ("step_seconds", "step_cpu_seconds", "seconds", "tokens_per_second")
Spread = tuple[float, float, float]  # lower quartile, median, upper quartile

_BLOCKS = 4  # into which the questions are cut where one worker at a time has the memory


@dataclass(frozen=True)
class Way:
    """A way to answer: by which worker, and what its requests say beside the prompt."""

    name: str
    worker: str
    asked: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one answer cost; times in seconds.

    Attributes:
        token_ids: the answer, without its end token.
        prompt_seconds, seconds: reading the prompt, and all of it.
        cpu_seconds: of the process, all of it.
        passes: denoising steps, or tokens that were read one by one.
        canvases: 0 from left to right.
        peak_bytes: MLX's high-water mark, weights included.
    """

    token_ids: Sequence[int]
    prompt_seconds: float
    seconds: float
    cpu_seconds: float
    passes: int
    canvases: int
    peak_bytes: int

    @property
    def step_seconds(self) -> float:
        """Time of a pass; reading finished canvases is part of it."""
        return (self.seconds - self.prompt_seconds) / self.passes

    @property
    def step_cpu_seconds(self) -> float:
        """CPU time of a pass, where the prompt's share is that of the time."""
        return self.cpu_seconds * (1 - self.prompt_seconds / self.seconds) / self.passes

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer by all of its time."""
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one way to answer came to over all prompts.

    Attributes:
        name: see `Way`.
        right, low, high: right answers and their share's 95 % interval; None where nothing can be
            checked.
        count: answers.
        tokens_per_second: all tokens by all time.
        step, prompt, answer: seconds of a pass, of the prompt and of an answer, as quartiles.
        steps_per_canvas: mean; None from left to right.
        passes: mean for an answer.
        peak_bytes: the largest.
    """

    name: str
    right: int | None
    low: float | None
    high: float | None
    count: int
    tokens_per_second: float
    step: Spread
    prompt: Spread
    answer: Spread
    steps_per_canvas: float | None
    passes: float
    peak_bytes: int


def ways(*, peer: bool) -> list[Way]:
    """Ours, ours from left to right, and with a peer its two ways."""
    own = [
        Way("canvases", OURS, {"mode": "diffusion"}),
        Way("left to right", OURS, {"mode": "ar"}),
    ]
    if not peer:
        return own
    return [
        *own,
        Way("mlx-vlm, same sampler", THEIRS, {"sampler": "entropy-bound"}),
        Way("mlx-vlm, its defaults", THEIRS, {"sampler": "default"}),
    ]


def run_compare(
    workers: "Workers",
    choices: Sequence[Way],
    questions: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, list[Answer]]:
    """Answer every question in every way; answers by the name of the way, in order.

    Args:
        workers: those that the ways name.
        choices: the ways.
        questions: what a request says of each; at least one.
        seed: of the first question; the next one has the next number.
        progress: told how many answers there are.
    """

    def ask(way: Way, index: int) -> Answer:
        request = {**questions[index], **way.asked, "seed": seed + index}
        return Answer(**workers.get(way.worker).ask(request))

    block = 1 if workers.together else -(-len(questions) // _BLOCKS)
    answers: dict[str, list[Answer]] = {way.name: [] for way in choices}
    warm: dict[str, WorkerProcess] = {}
    for done, (way, index) in enumerate(schedule(choices, len(questions), block), 1):
        worker = workers.get(way.worker)
        if warm.get(way.name) is not worker:  # what is computed for the first time takes longer
            ask(way, index)
            warm[way.name] = worker
        answers[way.name].append(ask(way, index))
        progress(done)
    return answers


def schedule(choices: Sequence[Way], count: int, block: int) -> Iterator[tuple[Way, int]]:
    """Who answers which question when: `block` questions in one way, then in the next one."""
    for turn, start in enumerate(range(0, count, block)):
        first = turn % len(choices)
        for way in [*choices[first:], *choices[:first]]:
            for index in range(start, min(start + block, count)):
                yield way, index


class Workers:
    """The workers of a comparison, started when they are needed.

    With `together` they all stay; without it one has the memory to itself, and ends when another
    one is needed.
    """

    def __init__(self, start: Mapping[str, Callable[[], WorkerProcess]], *, together: bool = True):
        self.together = together
        self._start = dict(start)
        self._running: dict[str, WorkerProcess] = {}
        self.hellos: dict[str, dict[str, Any]] = {}

    def add(self, name: str, start: Callable[[], WorkerProcess]) -> None:
        """One more, not started yet."""
        self._start[name] = start

    def get(self, name: str) -> WorkerProcess:
        """The worker of that name, running."""
        if name not in self._running:
            if not self.together:
                self.close()
            self._running[name] = self._start[name]()
            self.hellos[name] = self._running[name].hello
        return self._running[name]

    def close(self) -> None:
        """End all of them."""
        while self._running:
            self._running.popitem()[1].close()


def summarise(name: str, answers: Sequence[Answer], right: Sequence[bool] | None) -> Row:
    """The numbers of one way."""
    low, high = (None, None) if right is None else wilson(sum(right), len(right))
    canvases = sum(answer.canvases for answer in answers)
    passes = sum(answer.passes for answer in answers)
    return Row(
        name=name,
        right=None if right is None else sum(right),
        low=low,
        high=high,
        count=len(answers),
        tokens_per_second=sum(len(answer.token_ids) for answer in answers)
        / sum(answer.seconds for answer in answers),
        step=spread([answer.step_seconds for answer in answers]),
        prompt=spread([answer.prompt_seconds for answer in answers]),
        answer=spread([answer.seconds for answer in answers]),
        steps_per_canvas=passes / canvases if canvases else None,
        passes=passes / len(answers),
        peak_bytes=max(answer.peak_bytes for answer in answers),
    )


def ratios(ours: Sequence[Answer], theirs: Sequence[Answer]) -> dict[str, Spread]:
    """Ours by theirs within each prompt, as quartiles; pairs in which one side wrote nothing are
    left out of a rate."""
    found = {}
    for name in RATIOS:
        pairs = [
            (getattr(one, name), getattr(other, name))
            for one, other in zip(ours, theirs, strict=True)
        ]
        found[name] = spread([one / other for one, other in pairs if one and other])
    return found


def spread(values: Sequence[float]) -> Spread:
    """Lower quartile, median and upper quartile; NaN where there are no values."""
    if len(values) < 2:
        only = values[0] if values else math.nan
        return only, only, only
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high
