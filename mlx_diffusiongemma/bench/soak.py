"""Hundreds of requests of mixed shapes in one process: it must stay as fast and as small.

    one process      request 1 ... request n-50   | last 50
    a fresh process                       warm-up |  same 50      in turns with them

Bars: the last 50 take at most 1.1 times as long as the first 50, resident memory grows by less than
1 MB in 100 requests, and a shape with its seed gives the same answer every time.

A machine may change its speed meanwhile. So the speed that decides is that of the last 50 beside
the same 50 in a fresh process, in turns; the first 50 are shown beside it. On a CPU back-end it is
CPU time that decides, since waiting is not our slowdown; on a GPU it is time, since what a GPU does
is no CPU time.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlx_diffusiongemma.bench.soak_mix import MIX

COMPARED = 2 * len(MIX)  # requests at each end
SLOWEST = 1.1  # times as long as at first
GROWTH = 1e6  # bytes in 100 requests
_SETTLING = 100  # requests until caches have their size, in a run of five times as many or more


class Asked(Protocol):
    """A process that answers; see `process.WorkerProcess`."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one request did; see `soak_worker`."""

    seconds: float
    cpu_seconds: float
    resident_bytes: int
    active_bytes: int
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Soak:
    """All replies.

    Attributes:
        replies: of the process that answered everything, in order.
        fresh: of a fresh one that answered the last 50 too, in turns with it; empty without one.
    """

    replies: Sequence[Reply]
    fresh: Sequence[Reply]


@dataclass(frozen=True)
class Bar:
    """One thing that must hold, or, when it does not decide, is shown beside what does."""

    name: str
    value: float
    limit: float
    decides: bool = True

    @property
    def met(self) -> bool:
        """Whether the value keeps to the limit."""
        return self.value <= self.limit


def run_soak(
    old: Asked,
    start_fresh: Callable[[], Asked] | None,
    requests: int,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> Soak:
    """Ask `old` for `requests` answers, a multiple of the mix's length and twice `COMPARED`.

    `start_fresh` is called when the last 50 are due; whoever gives it ends the process.
    """
    assert requests % len(MIX) == 0 and requests >= 2 * COMPARED
    replies: list[Reply] = []
    fresh: list[Reply] = []

    def ask(who: Asked, index: int) -> Reply:
        return Reply(**who.ask({"shape": index % len(MIX)}))

    for index in range(requests - COMPARED):
        replies.append(ask(old, index))
        progress(len(replies))
    new = start_fresh() if start_fresh is not None else None
    for index in range(len(MIX) if new is not None else 0):
        assert new is not None
        ask(new, index)  # what is computed for the first time takes longer
    for index in range(requests - COMPARED, requests):
        replies.append(ask(old, index))
        if new is not None:
            fresh.append(ask(new, index))
        progress(len(replies))
    return Soak(replies=replies, fresh=fresh)


def bars(soak: Soak, *, on_cpu: bool) -> list[Bar]:
    """What was measured, beside what is asked."""
    first, last = soak.replies[:COMPARED], soak.replies[-COMPARED:]
    clock = "cpu_seconds" if on_cpu else "seconds"
    named = {"seconds": "time", "cpu_seconds": "CPU time"}
    found = [
        Bar(f"last 50 by first 50, median {named[name]}", _medians(last, first, name), SLOWEST,
            decides=not soak.fresh and name == clock)
        for name in named
    ]  # fmt: skip
    if soak.fresh:
        found += [
            Bar(f"last 50 by a fresh process in turns, {named[name]}",
                _pairs(last, soak.fresh, name), SLOWEST, decides=name == clock)
            for name in named
        ]  # fmt: skip
    start = min(_SETTLING, len(soak.replies) // 5)
    late = soak.replies[start:]
    return [
        *found,
        Bar("resident MB for 100 requests", slope(late, "resident_bytes") / 1e6, GROWTH / 1e6),
        Bar("MLX's MB for 100 requests", slope(late, "active_bytes") / 1e6, GROWTH / 1e6),
        Bar("answers unlike the first of their kind", len(unlike(soak)), 0),
    ]


def unlike(soak: Soak) -> list[int]:
    """Numbers of the requests whose answer was not that of the same shape at first."""
    first = [reply.outcome for reply in soak.replies[: len(MIX)]]
    offset = len(soak.replies) - len(soak.fresh)
    everything = [*enumerate(soak.replies), *enumerate(soak.fresh, offset)]
    return [index for index, reply in everything if reply.outcome != first[index % len(MIX)]]


def slope(replies: Sequence[Reply], name: str) -> float:
    """Growth in 100 requests, by least squares."""
    values = [getattr(reply, name) for reply in replies]
    return 100 * statistics.linear_regression(range(len(values)), values).slope


def lines(found: Sequence[Bar]) -> Iterator[str]:
    """The bars for people, and the verdict last."""
    for bar in found:
        mark = "holds" if bar.met else "FAILS"
        if not bar.decides:
            mark = "shown" if bar.met else "shown, above"
        yield f"{bar.name:50} {bar.value:8.3f}   at most {bar.limit:g}   {mark}"
    yield "verdict: " + ("holds" if holds(found) else "FAILS")


def holds(found: Sequence[Bar]) -> bool:
    """Whether everything that decides is met."""
    return all(bar.met for bar in found if bar.decides)


def _medians(some: Sequence[Reply], others: Sequence[Reply], name: str) -> float:
    one, other = (statistics.median(getattr(r, name) for r in run) for run in (some, others))
    return one / other


def _pairs(some: Sequence[Reply], others: Sequence[Reply], name: str) -> float:
    pairs = zip(some, others, strict=True)
    return statistics.median(getattr(one, name) / getattr(other, name) for one, other in pairs)
