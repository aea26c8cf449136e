"""What may be written, as an expression over characters: the tree that automata are made from.

    text("a") + any_of(text("b"), characters((48, 57))) repeated 0 to 3 times

Trees are frozen and hashable; they know no tokens, no bytes and no syntax of regular expressions.
"""

from dataclasses import dataclass
from typing import TypeAlias

LAST_CHARACTER = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class Characters:
    """One character out of `ranges`: sorted, disjoint, inclusive code points, no surrogates."""

    ranges: tuple[tuple[int, int], ...]

    def __invert__(self) -> "Characters":
        gaps, start = [], 0
        for low, high in (*self.ranges, (LAST_CHARACTER + 1, LAST_CHARACTER + 1)):
            if start < low:
                gaps.append((start, low - 1))
            start = high + 1
        return characters(*gaps)

    def __and__(self, other: "Characters") -> "Characters":
        return ~characters(*(~self).ranges, *(~other).ranges)

    def __or__(self, other: "Characters") -> "Characters":
        return characters(*self.ranges, *other.ranges)


@dataclass(frozen=True)
class Sequence:
    """One part after the other; none is the empty text."""

    parts: tuple["Language", ...]


@dataclass(frozen=True)
class Choice:
    """One of the options; none at all can never be written."""

    options: tuple["Language", ...]


@dataclass(frozen=True)
class Repeat:
    """`part` at least `least` and at most `most` times; None sets no limit."""

    part: "Language"
    least: int
    most: int | None


Language: TypeAlias = Characters | Sequence | Choice | Repeat

EMPTY = Sequence(())


def characters(*ranges: tuple[int, int]) -> Characters:
    """Characters of these ranges in any order; surrogates, which UTF-8 lacks, are left out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Characters(tuple(merged))


def _without_surrogates(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    first, last = _SURROGATES
    parts = [
        part
        for low, high in ranges
        for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
    ]
    return [(low, high) for low, high in parts if low <= high]


def of(letters: str) -> Characters:
    """One of these letters."""
    return characters(*((ord(letter), ord(letter)) for letter in letters))


def text(literal: str) -> Language:
    """Exactly this text."""
    return Sequence(tuple(of(letter) for letter in literal))


def join(*parts: Language | str) -> Language:
    """One after the other; a string stands for itself."""
    return Sequence(tuple(text(part) if isinstance(part, str) else part for part in parts))


def any_of(*options: Language | str) -> Language:
    """One of these; a string stands for itself."""
    return Choice(tuple(text(part) if isinstance(part, str) else part for part in options))


def repeat(part: Language | str, least: int = 0, most: int | None = None) -> Language:
    """`part` from `least` to `most` times."""
    return Repeat(text(part) if isinstance(part, str) else part, least, most)


def optional(part: Language | str) -> Language:
    """`part` or nothing."""
    return repeat(part, 0, 1)


ANYTHING = repeat(~Characters(()))
