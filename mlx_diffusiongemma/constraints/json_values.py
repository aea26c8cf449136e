"""The spelling of JSON: strings, arrays and objects as languages, at most one space between."""

import json
from collections.abc import Sequence as Items
from typing import Any

from mlx_diffusiongemma.constraints.json_numbers import LARGEST, decimal_numbers
from mlx_diffusiongemma.constraints.language import (
    EMPTY,
    Characters,
    Choice,
    Language,
    any_of,
    characters,
    join,
    of,
    optional,
    repeat,
    text,
)

_CONTROL = characters((0, 0x1F))
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}
_PLAIN = ~(_CONTROL | of('"\\'))
COMMA, COLON = join(",", optional(" ")), join(":", optional(" "))
NUMBER = decimal_numbers(-LARGEST, LARGEST, open_least=False, open_most=False)


def spelled(allowed: Characters) -> Language:
    """One of these characters as it stands inside of a JSON string; controls that have no short
    escape are left out, as no one wants them.
    """
    escaped = [text(short) for letter, short in _ESCAPES.items() if (allowed & of(letter)).ranges]
    return Choice((allowed & _PLAIN, *escaped))


_ANY_CHARACTER = spelled(~Characters(()))


def string_of(content: Language) -> Language:
    """A JSON string around content that is spelled already."""
    return join('"', content, '"')


def string_between(least: int, most: int | None) -> Language:
    """A JSON string of so many characters."""
    return string_of(repeat(_ANY_CHARACTER, least, most))


def literal(value: Any) -> Language:
    """Exactly this JSON value, written compactly."""
    return text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def any_value(depth: int) -> Language:
    """Any JSON value with at most `depth` levels of arrays and objects."""
    scalars = any_of(string_between(0, None), NUMBER, "true", "false", "null")
    if depth == 0:
        return scalars
    inner = any_value(depth - 1)
    return any_of(scalars, array((), inner, 0, None), mapping(inner))


def array(first: Items[Language], rest: Language | None, least: int, most: int | None) -> Language:
    """`first` items in their order, then `rest` ones if any; `least` to `most` in all."""
    limit = math_limit(most)
    first = first[: min(len(first), limit)]
    after: Language = EMPTY
    if rest is not None and limit > len(first):
        needed = max(least - max(len(first), 1), 0)
        room = None if most is None else most - max(len(first), 1)
        after = repeat(join(COMMA, rest), needed, room)
        if not first:
            after = join(rest, after)
            return join("[", after if least > 0 else optional(after), "]")
    elif least > len(first):
        return Choice(())
    for index in range(len(first) - 1, -1, -1):
        item = first[index] if index == 0 else join(COMMA, first[index])
        after = join(item, after)
        if index >= least:
            after = optional(after)
    return join("[", after, "]")


def math_limit(most: int | None) -> int:
    """`most` as a number to compare with."""
    return most if most is not None else 1 << 62


def mapping(value: Language) -> Language:
    """An object with any keys and such values."""
    pair = join(string_between(0, None), COLON, value)
    return join("{", optional(join(pair, repeat(join(COMMA, pair)))), "}")


def object_of(properties: Items[tuple[str, Language, bool]]) -> Language:
    """An object with these (name, value, required) in this order and no others."""
    pairs = [(join(literal(name), COLON, value), required) for name, value, required in properties]
    rest: Language = EMPTY
    starts: list[Language] = []
    # From the last to the first; `rest` is shared, so that n optional ones cost n, not n * n.
    for pair, required in reversed(pairs):
        if required:
            starts = []
        starts.append(join(pair, rest))
        follow = join(COMMA, pair)
        rest = join(follow if required else optional(follow), rest)
    if not any(required for _, required in pairs):
        starts.append(EMPTY)
    return join("{", Choice(tuple(starts)), "}")
