"""The keywords of JSON Schema that are supported, and what they say about types.

Anything else in a schema is refused by its name, never passed over.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from mlx_diffusiongemma.errors import ConstraintError

Schema: TypeAlias = Mapping[str, Any] | bool

ANNOTATIONS = frozenset(
    {"$anchor", "$comment", "$id", "$schema", "default", "deprecated", "description"}
    | {"discriminator", "examples", "readOnly", "title", "writeOnly"}
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": _NUMERIC,
    "integer": _NUMERIC,
    "boolean": (),
    "null": (),
}
# A schema with one of these says all with it.
COMPLETE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
SUPPORTED = frozenset(
    {"type", *_DEFINITIONS, *COMPLETE, *(word for words in BY_TYPE.values() for word in words)}
)


def checked(schema: object, path: str) -> set[str]:
    """The keywords that say something; ConstraintError for one that is not supported."""
    if not isinstance(schema, Mapping):
        raise ConstraintError(f"{path} is {schema!r}, which is no schema")
    said = set(schema) - ANNOTATIONS
    for word in sorted(said - SUPPORTED):
        raise unsupported(word, path)
    return said - _DEFINITIONS


def unsupported(word: str, path: str) -> ConstraintError:
    """The error for a keyword."""
    return ConstraintError(
        f"{path} has the keyword {word!r}, which is not supported",
        hint="supported are " + ", ".join(sorted(SUPPORTED)),
    )


def types_of(schema: Mapping[str, Any], said: set[str]) -> list[str] | None:
    """The types that are asked for, or that the keywords are about; None for any."""
    if "type" in said:
        value = schema["type"]
        names = value if isinstance(value, list) else [value]
        for name in names:
            if name not in BY_TYPE:
                raise ConstraintError(f"{name!r} is no type of JSON Schema")
        return [n for n in names if not (n == "integer" and "number" in names)]
    about = [n for n, words in BY_TYPE.items() if said & set(words) and n != "integer"]
    return about or None


def is_of_type(value: Any, name: str) -> bool:
    """Whether a value is of a type, as JSON Schema has it."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    if isinstance(value, bool) and name != "boolean":
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds[name])


def as_list(value: Any, path: str) -> list[Any]:
    """The value; ConstraintError unless it is a list."""
    if not isinstance(value, list):
        raise ConstraintError(f"{path} should be a list, and is {value!r}")
    return value


def count_of(schema: Mapping[str, Any], word: str, path: str) -> int | None:
    """A count that a schema sets, None if it does not."""
    value = schema.get(word)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ConstraintError(f"{path}/{word} is {value!r}", hint="give a whole number")
    return max(int(value), 0)


def surely_disjoint(one: Schema, other: Schema) -> bool:
    """Whether no value can fit both, as far as types and constants tell."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is False or other is False
    values = [_constants(schema) for schema in (one, other)]
    if values[0] is not None and values[1] is not None:
        return not any(a == b for a in values[0] for b in values[1])
    types = [types_of(schema, {"type"} & set(schema)) for schema in (one, other)]
    if types[0] and types[1]:
        kinds = [{"number" if n == "integer" else n for n in names} for names in types if names]
        if not kinds[0] & kinds[1]:
            return True
    common = set(one.get("required", [])) & set(other.get("required", []))
    if not all(names == ["object"] for names in types):
        return False
    return any(
        surely_disjoint(one["properties"][name], other["properties"][name])
        for name in common
        if name in one.get("properties", {}) and name in other.get("properties", {})
    )


def _constants(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")
