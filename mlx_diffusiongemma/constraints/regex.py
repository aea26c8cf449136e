"""Python's regular expressions as languages; the interpreter's own parser reads them.

What a language cannot say (look-around, back-references, word borders, flags) is refused by name.
`\\d`, `\\w` and `\\s` write ASCII; `\\D`, `\\W` and `\\S` avoid what Unicode counts to these, too.
"""

import re
from collections.abc import Callable
from functools import cache
from re import _parser  # type: ignore[attr-defined]  # reads exactly what `re` reads
from typing import Any

from mlx_diffusiongemma.constraints.language import (
    EMPTY,
    LAST_CHARACTER,
    Characters,
    Choice,
    Language,
    Sequence,
    characters,
    of,
    repeat,
)
from mlx_diffusiongemma.errors import ConstraintError

_CLASSES = {
    "CATEGORY_DIGIT": (r"\d", characters((48, 57))),
    "CATEGORY_WORD": (r"\w", characters((48, 57), (65, 90), (95, 95), (97, 122))),
    "CATEGORY_SPACE": (r"\s", characters((9, 13), (32, 32))),
}
_NAMES = {
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "GROUPREF": "back-references",
    "GROUPREF_EXISTS": "conditional groups",
    "AT": "anchors and word borders inside an expression",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repeats",
}
_STARTS, _ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")

Spell = Callable[[Characters], Language]


def regex_language(pattern: str, *, spell: Spell = lambda characters: characters) -> Language:
    """All texts that `pattern` matches as a whole; `^` and `$` at its ends say nothing new.

    `spell` gives the way a character is written, such as with a backslash inside of JSON.
    ConstraintError names what is not supported or not a regular expression.
    """
    branches = _branches(_parse(pattern))
    return Choice(tuple(_Reader(pattern, spell).sequence(items) for _, items, _ in branches))


def search_language(pattern: str, *, spell: Spell) -> Language:
    """All texts in which `pattern` matches somewhere, as JSON Schema has it."""
    reader, anything = _Reader(pattern, spell), repeat(spell(~Characters(())))
    return Choice(
        tuple(
            Sequence(
                (
                    EMPTY if from_start else anything,
                    reader.sequence(items),
                    EMPTY if to_end else anything,
                )
            )
            for from_start, items, to_end in _branches(_parse(pattern))
        )
    )


def _parse(pattern: str) -> list[tuple[Any, Any]]:
    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConstraintError(f"{pattern!r} is not a regular expression: {error}") from None
    if parsed.state.flags & ~re.UNICODE:
        raise ConstraintError(
            f"the regular expression {pattern!r} has flags such as `(?i)`",
            hint="write the letters out: `[aA]`",
        )
    return list(parsed)


def _branches(items: list[tuple[Any, Any]]) -> list[tuple[bool, list[tuple[Any, Any]], bool]]:
    """The alternatives of the whole expression: anchored at the start, what is left, at the end."""
    if len(items) == 1:
        kind, value = items[0]
        if str(kind) == "BRANCH":
            return [found for branch in value[1] for found in _branches(list(branch))]
        if str(kind) == "SUBPATTERN" and not value[1] and not value[2]:
            return _branches(list(value[3]))
    from_start = bool(items) and str(items[0][0]) == "AT" and str(items[0][1]) in _STARTS
    items = items[1:] if from_start else items
    to_end = bool(items) and str(items[-1][0]) == "AT" and str(items[-1][1]) in _ENDS
    return [(from_start, items[:-1] if to_end else items, to_end)]


class _Reader:
    """Turns the parser's items into a language."""

    def __init__(self, pattern: str, spell: Spell):
        self._pattern, self._spell = pattern, spell

    def sequence(self, items: Any) -> Language:
        return Sequence(tuple(self._item(str(kind), value) for kind, value in items))

    def _item(self, kind: str, value: Any) -> Language:
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._spell(_set(kind, value))
            case "BRANCH":
                return Choice(tuple(self.sequence(branch) for branch in value[1]))
            case "SUBPATTERN" if not value[1] and not value[2]:
                return self.sequence(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, part = value
                limit = None if most is _parser.MAXREPEAT else int(most)
                return repeat(self.sequence(part), int(least), limit)
        name = _NAMES.get(kind, "flags inside a group")
        raise ConstraintError(
            f"the regular expression {self._pattern!r} has {name}, which are not supported",
            hint="classes, groups, `|` and repeats are; the whole text is matched",
        )


def _set(kind: str, value: Any) -> Characters:
    match kind:
        case "LITERAL":
            return of(chr(value))
        case "NOT_LITERAL":
            return ~of(chr(value))
        case "ANY":
            return ~of("\n")
        case "RANGE":
            return characters(value)
        case "CATEGORY":
            name = str(value)
            if "_NOT_" in name:
                letter, _ = _CLASSES[name.replace("_NOT", "")]
                return ~_unicode(letter)
            return _CLASSES[name][1]
    negated = bool(value) and str(value[0][0]) == "NEGATE"
    parts = [_set(str(kind), inner) for kind, inner in value[negated:]]
    joined = characters(*(span for part in parts for span in part.ranges))
    if not negated:
        return joined
    # Of a negated class each class inside counts as Unicode has it: `[^\d]` writes no digit.
    wide = [
        _unicode(_CLASSES[str(inner)][0]).ranges
        for kind, inner in value[1:]
        if str(kind) == "CATEGORY" and "_NOT_" not in str(inner)
    ]
    narrow = [
        _CLASSES[str(inner).replace("_NOT", "")]
        for kind, inner in value[1:]
        if str(kind) == "CATEGORY" and "_NOT_" in str(inner)
    ]
    allowed = ~characters(*joined.ranges, *(span for ranges in wide for span in ranges))
    for _, plain in narrow:
        allowed = allowed & plain
    return allowed


@cache
def _unicode(letter: str) -> Characters:
    """Every character that `re` counts to the class, and JavaScript's space besides."""
    everything = "".join(map(chr, characters_of_unicode()))
    found = {(ord(m[0][0]), ord(m[0][-1])) for m in re.finditer(letter + "+", everything)}
    extra = [(0xFEFF, 0xFEFF)] if letter == r"\s" else []
    return characters(*found, *extra)


def characters_of_unicode() -> range:
    """All code points; surrogates among them are told apart by `characters`."""
    return range(LAST_CHARACTER + 1)
