"""How long the work of a constraint takes, kept beside the loops, which keep no time.

Whoever asks for an answer makes the watches and reads them at the end; the rules of a canvas hold
one while they work. Reading the clock changes nothing that is computed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


class Stopwatch:
    """Adds up the seconds for which it is held; inside of itself it counts once.

    Attributes:
        seconds: so far.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._held, self._since = 0, 0.0

    def __enter__(self) -> None:
        if not self._held:
            self._since = self._clock()
        self._held += 1

    def __exit__(self, *error: object) -> None:
        self._held -= 1
        if not self._held:
            self.seconds += self._clock() - self._since


@dataclass(frozen=True, eq=False)
class ConstraintCost:
    """What a constraint has cost one answer.

    Attributes:
        preparing: the automaton, unless it was kept from an answer before.
        working: everything at the canvases: rules, masks, noise and texts.
    """

    preparing: Stopwatch = field(default_factory=Stopwatch)
    working: Stopwatch = field(default_factory=Stopwatch)
