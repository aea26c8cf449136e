"""What an answer may hold, as a value: composed by a caller, checked at once, compiled later.

CanvasConstraint.text("Total: ") + CanvasConstraint.regex(r"\\d+") --> follow --> canvas rules
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mlx_diffusiongemma.constraints.json_schema import Schema, schema_language
from mlx_diffusiongemma.constraints.language import ANYTHING, Language, any_of, join, text
from mlx_diffusiongemma.constraints.regex import regex_language
from mlx_diffusiongemma.errors import ConstraintError

SpanKind = Literal["anything", "text", "choices", "regex", "json_schema"]


@dataclass(frozen=True)
class CanvasConstraint:
    """What may be written, over as many canvases as it takes.

    Two constraints are added to say one after the other. All are checked when they are made:
    ConstraintError says what cannot be read. Whether a model's tokens can write it, and within how
    many, `progress.follow` finds out.

    Attributes:
        spans: kind and content of what follows each other.
        tokens: by position of the answer, the only tokens that may stand there; one pins it.
    """

    spans: tuple[tuple[SpanKind, str], ...] = ()
    tokens: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        language_of(self.spans)
        for position, allowed in self.tokens:
            if not allowed:
                raise ConstraintError(f"position {position} allows no token at all")
            if position < 0 or min(allowed) < 0:
                raise ConstraintError(f"position {position} allows {list(allowed)}")

    @classmethod
    def anything(cls) -> "CanvasConstraint":
        """Any text."""
        return cls((("anything", ""),))

    @classmethod
    def text(cls, text: str) -> "CanvasConstraint":
        """Exactly this text."""
        return cls((("text", text),))

    @classmethod
    def choices(cls, choices: Iterable[str]) -> "CanvasConstraint":
        """One of these texts."""
        return cls((("choices", json.dumps(list(choices))),))

    @classmethod
    def regex(cls, pattern: str) -> "CanvasConstraint":
        """A text that the regular expression matches as a whole; syntax and meaning are `re`'s."""
        return cls((("regex", pattern),))

    @classmethod
    def json_schema(cls, schema: "Schema | str | type") -> "CanvasConstraint":
        """JSON that the schema accepts: a mapping, its JSON text, or a pydantic model."""
        if isinstance(schema, type):
            schema = schema.model_json_schema()  # type: ignore[attr-defined]
        try:
            given = json.loads(schema) if isinstance(schema, str) else schema
            return cls((("json_schema", json.dumps(given)),))
        except (ValueError, TypeError, RecursionError) as error:
            raise ConstraintError(f"the schema is not JSON: {error}") from None

    def __add__(self, other: "CanvasConstraint") -> "CanvasConstraint":
        if other.tokens:
            raise ConstraintError(
                "tokens are given for what follows another constraint",
                hint="positions count from the start of the answer: add them last",
            )
        return replace(self, spans=self.spans + other.spans)

    def with_tokens(self, allowed: Mapping[int, Iterable[int]]) -> "CanvasConstraint":
        """The same, where only these tokens may stand at some positions of the answer."""
        before = {position: set(tokens) for position, tokens in self.tokens}
        for position, tokens in allowed.items():
            among = set(tokens)
            before[position] = among & before.get(position, among)
        return replace(
            self, tokens=tuple((at, tuple(sorted(among))) for at, among in sorted(before.items()))
        )


def language_of(spans: tuple[tuple[SpanKind, str], ...]) -> Language:
    """The texts that the spans of a constraint allow, whatever tokens they are made of."""
    try:
        return join(*(_READERS[kind](content) for kind, content in spans))
    except RecursionError:
        raise ConstraintError("the constraint is nested too deep") from None


def _choices(content: str) -> Language:
    choices: list[Any] = json.loads(content)
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise ConstraintError(f"choices are {choices}", hint="give texts, one at least, none empty")
    return any_of(*choices)


_READERS: Mapping[SpanKind, Callable[[str], Language]] = {
    "anything": lambda content: ANYTHING,
    "text": text,
    "choices": _choices,
    "regex": regex_language,
    "json_schema": lambda content: schema_language(json.loads(content)),
}
