"""From a language to a deterministic automaton over UTF-8 bytes, with its states in the open.

language --> nondeterministic automaton (Thompson) --> subsets of its states --> useful ones only

Arrays: `next` int32 [states, byte classes], -1 where nothing can follow; state 0 is the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlx_diffusiongemma.constraints.language import (
    Characters,
    Choice,
    Language,
    Repeat,
    Sequence,
)
from mlx_diffusiongemma.errors import ConstraintError

MOST_STATES = 20_000
_MOST_PARTS = 400_000
# The last code point of 1, 2, 3 and 4 bytes.
_UTF8_ENDS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton; every state can still reach an accepting one.

    Attributes:
        next: int32 [S, K], the state after a byte of that class, -1 for none.
        byte_class: int32 [256], the class of each byte.
        accepting: bool [S].
    """

    next: np.ndarray
    byte_class: np.ndarray
    accepting: np.ndarray

    def state_after(self, written: bytes) -> int:
        """The state after these bytes, -1 when they cannot be written."""
        state = 0
        for byte in written:
            state = int(self.next[state, self.byte_class[byte]])
            if state < 0:
                break
        return state

    def accepts(self, written: bytes) -> bool:
        """Whether these bytes are a whole text of the language."""
        state = self.state_after(written)
        return state >= 0 and bool(self.accepting[state])


def byte_automaton(language: Language) -> ByteAutomaton:
    """Build the automaton; ConstraintError when nothing can be written, or it grows too large."""
    return _useful(*_determinise(_Nondeterministic(language)))


class _Nondeterministic:
    """States with free steps and byte ranges; built from the end, read by `_determinise`.

    A part that is followed by the same state is built once, however often the tree holds it.
    """

    def __init__(self, language: Language) -> None:
        self.free: list[list[int]] = []
        self.ranges: list[list[tuple[int, int, int]]] = []
        self._built: dict[tuple[int, int], int] = {}
        self.end = self._state()
        self.start = self._before(language, self.end)

    def _state(self, *free: int) -> int:
        if len(self.free) >= _MOST_PARTS:
            raise _too_large()
        self.free.append([*free])
        self.ranges.append([])
        return len(self.free) - 1

    def _before(self, language: Language, end: int) -> int:
        """The state from which exactly the texts of `language` lead to `end`."""
        key = id(language), end  # the tree outlives this: no id is used twice
        if key not in self._built:
            self._built[key] = self._build(language, end)
        return self._built[key]

    def _build(self, language: Language, end: int) -> int:
        match language:
            case Characters(ranges):
                return self._characters(ranges, end)
            case Sequence(parts):
                for part in reversed(parts):
                    end = self._before(part, end)
                return end
            case Choice(options):
                return self._state(*[self._before(option, end) for option in options])
            case Repeat(part, least, most):
                start = end
                if most is None:
                    start = self._state(end)
                    self.free[start].append(self._before(part, start))
                for _ in range(0 if most is None else most - least):
                    start = self._state(end, self._before(part, start))
                for _ in range(least):
                    start = self._before(part, start)
                return start

    def _characters(self, ranges: tuple[tuple[int, int], ...], end: int) -> int:
        start = self._state()
        # What ends alike is shared: most characters differ in their first bytes alone.
        endings: dict[tuple[tuple[int, int], ...], int] = {(): end}
        for low, high in ranges:
            for path in _utf8_ranges(low, high):
                state = start
                for index, byte_range in enumerate(path):
                    rest = path[index + 1 :]
                    if rest not in endings:
                        endings[rest] = self._state()
                    edge = (*byte_range, endings[rest])
                    if edge not in self.ranges[state]:
                        self.ranges[state].append(edge)
                    state = endings[rest]
        return start


def _utf8_ranges(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Byte ranges, one after the other, that together spell the code points low to high."""
    for end in _UTF8_ENDS:
        if low > high:
            return
        if low <= end:
            yield from _same_length(low, min(high, end))
            low = end + 1


def _same_length(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """As `_utf8_ranges`, for code points whose UTF-8 is equally long."""
    first, last = chr(low).encode(), chr(high).encode()
    for rest in range(len(first) - 1, 0, -1):
        block = (1 << 6 * rest) - 1  # what the last `rest` bytes can hold
        if low & ~block != high & ~block:
            if low & block:
                yield from _same_length(low, low | block)
                yield from _same_length((low | block) + 1, high)
                return
            if high & block != block:
                yield from _same_length(low, (high & ~block) - 1)
                yield from _same_length(high & ~block, high)
                return
    yield tuple(zip(first, last, strict=True))


def _byte_classes(automaton: _Nondeterministic) -> tuple[np.ndarray, int]:
    """int32 [256] and how many: bytes of one class are told apart by no range."""
    borders = {0}
    for ranges in automaton.ranges:
        for low, high, _ in ranges:
            borders |= {low, high + 1}
    starts = np.zeros(257, np.int32)
    starts[list(borders)] = 1
    classes = np.cumsum(starts[:256]) - 1
    return classes.astype(np.int32), int(classes[-1]) + 1


def _determinise(automaton: _Nondeterministic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`next`, `byte_class` and `accepting` of the subsets that can be reached."""
    byte_class, count = _byte_classes(automaton)
    steps = [
        [
            (step, target)
            for low, high, target in ranges
            for step in range(byte_class[low], byte_class[high] + 1)
        ]
        for ranges in automaton.ranges
    ]
    closures: dict[int, tuple[int, ...]] = {}
    first = frozenset(_closure(automaton, automaton.start, closures))
    numbers, queue, rows = {first: 0}, [first], []
    for subset in queue:  # grows while it is read
        reached: dict[int, set[int]] = {}
        for state in subset:
            for step, target in steps[state]:
                reached.setdefault(step, set()).add(target)
        row, known = [-1] * count, {}
        for step, targets in reached.items():
            key = frozenset(targets)
            if key not in known:
                after = frozenset(
                    state for target in key for state in _closure(automaton, target, closures)
                )
                if after not in numbers:
                    if len(numbers) >= MOST_STATES:
                        raise _too_large()
                    numbers[after] = len(numbers)
                    queue.append(after)
                known[key] = numbers[after]
            row[step] = known[key]
        rows.append(row)
    accepting = np.array([automaton.end in subset for subset in queue])
    return np.array(rows, np.int32), byte_class, accepting


def _closure(
    automaton: _Nondeterministic, state: int, known: dict[int, tuple[int, ...]]
) -> tuple[int, ...]:
    """The states reached for free that have something to say: a byte to read, or no way on."""
    if state not in known:
        seen, stack = {state}, [state]
        while stack:
            for after in automaton.free[stack.pop()]:
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
        known[state] = tuple(s for s in seen if automaton.ranges[s] or not automaton.free[s])
    return known[state]


def _useful(following: np.ndarray, byte_class: np.ndarray, accepting: np.ndarray) -> ByteAutomaton:
    """Without the states that can no longer end; the others keep their order."""
    useful = accepting.copy()
    while True:
        more = useful | np.any((following >= 0) & useful[following], axis=1)
        if np.array_equal(more, useful):
            break
        useful = more
    if not useful[0]:
        raise ConstraintError("nothing can be written that the constraint allows")
    numbers = np.where(useful, np.cumsum(useful) - 1, -1).astype(np.int32)
    kept = following[useful]
    kept = np.where(kept >= 0, numbers[kept], -1).astype(np.int32)
    return ByteAutomaton(kept, byte_class, accepting[useful])


def _too_large() -> ConstraintError:
    return ConstraintError(
        f"the constraint needs more than {MOST_STATES:,} states",
        hint="use smaller limits in `{m,n}`, maxLength and maxItems, or none at all",
    )
