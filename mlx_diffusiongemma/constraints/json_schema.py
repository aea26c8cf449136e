"""JSON Schema as a language: every text in it is JSON that the schema accepts.

Not every such JSON is in it: properties keep the schema's order, between tokens stands at most one
space, numbers have no exponents. A keyword that is not supported is refused by its name, never
passed over.
"""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from mlx_diffusiongemma.constraints.json_formats import FORMATS
from mlx_diffusiongemma.constraints.json_keywords import (
    BY_TYPE,
    COMPLETE,
    Schema,
    as_list,
    checked,
    count_of,
    is_of_type,
    surely_disjoint,
    types_of,
    unsupported,
)
from mlx_diffusiongemma.constraints.json_numbers import LARGEST, decimal_numbers, whole_numbers
from mlx_diffusiongemma.constraints.json_values import (
    any_value,
    array,
    literal,
    mapping,
    object_of,
    spelled,
    string_between,
    string_of,
)
from mlx_diffusiongemma.constraints.language import Choice, Language, any_of
from mlx_diffusiongemma.constraints.regex import regex_language, search_language
from mlx_diffusiongemma.errors import ConstraintError

_ANY_DEPTH = 2  # levels of arrays and objects where the schema sets no limits


def schema_language(schema: Schema) -> Language:
    """The JSON texts of a schema; ConstraintError names what is not supported and where."""
    return _Schema(schema).language(schema, "#", ())


class _Schema:
    def __init__(self, root: Schema):
        self._root = root

    def language(self, schema: Schema, path: str, open_refs: tuple[str, ...]) -> Language:
        if isinstance(schema, bool):
            return any_value(_ANY_DEPTH) if schema else Choice(())
        said = checked(schema, path)
        complete = [word for word in COMPLETE if word in said]
        if complete:
            word = complete[0]
            beside = said - {word} - ({"type"} if word in ("const", "enum") else set())
            if beside:
                raise ConstraintError(
                    f"{path} has {word} beside {', '.join(sorted(beside))}",
                    hint=f"put all of it where {word} leads",
                )
            return self._complete(schema, word, path, open_refs)
        types = types_of(schema, said)
        if types is None:
            return any_value(_ANY_DEPTH)
        unread = said - {"type"} - {word for name in types for word in BY_TYPE[name]}
        if unread and "type" not in said:
            raise ConstraintError(f"{path} has {', '.join(sorted(unread))} without a type")
        options = [self._of_type(name, schema, path, open_refs) for name in types]
        return any_of(*options)

    def _complete(
        self, schema: Mapping[str, Any], word: str, path: str, open_refs: tuple[str, ...]
    ) -> Language:
        value, here = schema[word], f"{path}/{word}"
        if word == "$ref":
            if value in open_refs:
                raise ConstraintError(
                    f"{path} refers to {value!r}, which it is a part of",
                    hint="recursive schemas are not supported; write the levels out",
                )
            return self.language(self._referred(value, path), value, (*open_refs, value))
        if word in ("const", "enum"):
            values = [value] if word == "const" else as_list(value, here)
            types = types_of(schema, {"type"} & set(schema))
            fitting = [
                v for v in values if types is None or any(is_of_type(v, name) for name in types)
            ]
            return Choice(tuple(literal(v) for v in fitting))
        schemas = as_list(value, here)
        if word == "allOf" and len(schemas) != 1:
            raise ConstraintError(
                f"{here} holds {len(schemas)} schemas", hint="allOf is supported with one"
            )
        if word == "oneOf":
            self._check_disjoint(schemas, here)
        return any_of(*(self.language(s, f"{here}/{i}", open_refs) for i, s in enumerate(schemas)))

    def _referred(self, reference: Any, path: str) -> Schema:
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ConstraintError(
                f"{path} refers to {reference!r}", hint="references stay in the file: `#/$defs/...`"
            )
        for name in unquote(reference[1:]).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                found = None
        if not isinstance(found, Mapping | bool) or reference[1:2] not in ("", "/"):
            raise ConstraintError(f"{path} refers to {reference!r}, which is no schema in the file")
        return found

    def _check_disjoint(self, schemas: list[Schema], path: str) -> None:
        """What fits two schemas fits not "one of" them: refuse unless none can."""
        for one, other in combinations([self._followed(s, path) for s in schemas], 2):
            if not surely_disjoint(one, other):
                raise ConstraintError(
                    f"{path} has schemas that one value may fit both",
                    hint="use anyOf, or types or required const properties that differ",
                )

    def _followed(self, schema: Schema, path: str) -> Schema:
        seen = 0
        while isinstance(schema, Mapping) and "$ref" in schema and seen < 100:
            schema, seen = self._referred(schema["$ref"], path), seen + 1
        return schema

    def _of_type(
        self, name: str, schema: Mapping[str, Any], path: str, open_refs: tuple[str, ...]
    ) -> Language:
        match name:
            case "object":
                return self._object(schema, path, open_refs)
            case "array":
                return self._array(schema, path, open_refs)
            case "string":
                return _string(schema, path)
            case "boolean":
                return any_of("true", "false")
            case "null":
                return any_of("null")
        return _number(schema, path, whole=name == "integer")

    def _object(self, schema: Mapping[str, Any], path: str, open_refs: tuple[str, ...]) -> Language:
        given, required = schema.get("properties", {}), as_list(schema.get("required", []), path)
        more = schema.get("additionalProperties", True)
        if not isinstance(given, Mapping) or not isinstance(more, Mapping | bool):
            raise ConstraintError(f"{path} has properties that are no schemas")
        if not given and not required and more is not False:
            here = f"{path}/additionalProperties"
            inner = any_value(_ANY_DEPTH - 1) if more is True else None
            return mapping(inner or self.language(more, here, open_refs))
        names = [*given, *(name for name in required if name not in given)]
        return object_of(
            [
                (
                    name,
                    self.language(given.get(name, more), f"{path}/properties/{name}", open_refs),
                    name in required,
                )
                for name in names
                if given.get(name, more) is not False or name in required
            ]
        )

    def _array(self, schema: Mapping[str, Any], path: str, open_refs: tuple[str, ...]) -> Language:
        items = schema.get("items", True)
        if schema.get("uniqueItems", False) is not False:
            raise unsupported("uniqueItems", path)
        if not isinstance(items, Mapping | bool):
            raise ConstraintError(f"{path}/items is a list", hint="prefixItems is its name today")
        first = [
            self.language(item, f"{path}/prefixItems/{i}", open_refs)
            for i, item in enumerate(as_list(schema.get("prefixItems", []), path))
        ]
        rest = None
        if items is not False:
            rest = self.language(items, f"{path}/items", open_refs)
        if items is True:
            rest = any_value(_ANY_DEPTH - 1)
        least, most = count_of(schema, "minItems", path), count_of(schema, "maxItems", path)
        return array(first, rest, least or 0, most)


def _string(schema: Mapping[str, Any], path: str) -> Language:
    least, most = count_of(schema, "minLength", path), count_of(schema, "maxLength", path)
    form, pattern = schema.get("format"), schema.get("pattern")
    if [form is not None, pattern is not None, least is not None or most is not None].count(
        True
    ) > 1:
        raise ConstraintError(
            f"{path} limits a string twice", hint="give one of pattern, format, and its length"
        )
    if pattern is not None:
        return string_of(search_language(pattern, spell=spelled))
    if form is not None:
        if form not in FORMATS:
            raise ConstraintError(
                f"{path} has the format {form!r}", hint="supported are " + ", ".join(FORMATS)
            )
        return string_of(regex_language(FORMATS[form]))
    if most is not None and (least or 0) > most:
        return Choice(())
    return string_between(least or 0, most)


def _number(schema: Mapping[str, Any], path: str, *, whole: bool) -> Language:
    if schema.get("multipleOf", 1) != 1 or (not whole and "multipleOf" in schema):
        raise unsupported("multipleOf", path)
    least, open_least = _bound(schema, "minimum", "exclusiveMinimum", path, -1)
    most, open_most = _bound(schema, "maximum", "exclusiveMaximum", path, 1)
    if whole:
        low = math.floor(least) + 1 if open_least else math.ceil(least)
        high = math.ceil(most) - 1 if open_most else math.floor(most)
        return whole_numbers(low, high)
    if least != int(least) or most != int(most):
        raise ConstraintError(
            f"{path} has a bound that is no whole number",
            hint="bounds of decimal numbers are supported where they are whole",
        )
    return decimal_numbers(int(least), int(most), open_least=open_least, open_most=open_most)


def _bound(
    schema: Mapping[str, Any], closed: str, open_: str, path: str, sign: int
) -> tuple[float, bool]:
    """The tighter of two bounds, and whether it is open; `sign` is -1 for the lower ones."""
    found: list[tuple[float, bool]] = [(sign * LARGEST, False)]
    for word, is_open in (closed, False), (open_, True):
        value = schema.get(word)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConstraintError(f"{path}/{word} is {value!r}", hint="give a number")
        found.append((value, is_open))
    return min(found, key=lambda bound: (sign * bound[0], not bound[1]))
