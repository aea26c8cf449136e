"""Which candidate of a site is the fastest right one: first the numbers, then the clock.

    {"stock": call, "custom": call, ...} --> tune --> Verdict: choice, seconds, banned

A call takes the number of a repetition, each of which has arguments of its own, and returns arrays.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.kernels.choices import STOCK

LEAST_WIN = 0.03  # of stock's time; less is not told from noise, and stock is the better known
ROUNDS = 20
ARGUMENTS = 4  # sets of them in turn, so that none is still in a GPU's cache
Candidate = Callable[[int], Sequence[mx.array]]


@dataclass(frozen=True)
class Verdict:
    """What a site should run; seconds are medians of the candidates that are right."""

    choice: str
    seconds: dict[str, float]
    banned: dict[str, str]

    def as_fields(self) -> dict[str, Any]:
        """For JSON, in milliseconds."""
        milliseconds = {name: round(1e3 * each, 4) for name, each in self.seconds.items()}
        return {"choice": self.choice, "milliseconds": milliseconds, "banned": self.banned}


def tune(
    candidates: Mapping[str, Candidate],
    *,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Verdict:
    """Compare STOCK, which defines what is right, with the other candidates.

    MLX is lazy: a candidate is computed before it counts as one that works.
    """
    want = candidates[STOCK](0)
    mx.eval(*want)
    banned: dict[str, str] = {}
    for name, candidate in candidates.items():
        if name != STOCK and (reason := _fault(candidate, want)):
            banned[name] = reason
    taken: dict[str, list[float]] = {name: [] for name in candidates if name not in banned}
    for number in range(rounds):
        names = list(taken)
        first = number % len(names)  # nobody always comes first, or after the same one
        for name in (*names[first:], *names[:first]):
            try:
                taken[name].append(_seconds(candidates[name], number, clock))
            except (RuntimeError, ValueError) as error:
                if name == STOCK:
                    raise
                banned[name] = f"fails: {error}"
                del taken[name]
    seconds = {name: median(each) for name, each in taken.items()}
    fastest = min(seconds, key=seconds.__getitem__)
    wins = seconds[fastest] <= (1 - LEAST_WIN) * seconds[STOCK]
    return Verdict(fastest if wins else STOCK, seconds, banned)


def verdicts(sites: Iterable[dispatch.Site]) -> dict[str, Verdict]:
    """What each site should run, by its name."""
    return {site.name: tune(candidates_of(site)) for site in sites}


def _fault(candidate: Candidate, want: Sequence[mx.array]) -> str | None:
    try:
        got = candidate(0)
        mx.eval(*got)
    except (RuntimeError, ValueError) as error:
        return f"fails: {error}"
    is_right = len(got) == len(want) and all(map(dispatch.agree, got, want))
    return None if is_right else "is wrong"


def _seconds(candidate: Candidate, number: int, clock: Callable[[], float]) -> float:
    mx.synchronize()
    started = clock()
    mx.eval(*candidate(number))
    mx.synchronize()
    return clock() - started


def candidates_of(site: dispatch.Site, sets: int = ARGUMENTS) -> dict[str, Candidate]:
    """The candidates of a site that was met, on arguments like those that it met."""
    first = next(iter(site.operations.values()))
    given = [_copied(first.trial(*site.arguments)) for _ in range(sets)]
    mx.eval(*_arrays(given))

    def on_each(function: Callable[..., Sequence[mx.array]]) -> Candidate:
        return lambda number: function(*given[number % sets])

    kernels = {name: on_each(operation.kernels) for name, operation in site.operations.items()}
    return {STOCK: on_each(first.twin), **kernels}


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if type(value) is not tuple else tuple(parts)
    return mx.contiguous(value * 1) if isinstance(value, mx.array) else value


def _arrays(values: Iterable[Any]) -> list[mx.array]:
    found: list[mx.array] = []
    for value in values:
        found += [value] if isinstance(value, mx.array) else []
        found += _arrays(value) if isinstance(value, tuple) else []
    return found
