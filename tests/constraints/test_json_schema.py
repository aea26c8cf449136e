"""JSON Schema: whatever can be written validates; what is not supported is named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY
from random_texts import random_text

from mlx_diffusiongemma.constraints.byte_automaton import byte_automaton
from mlx_diffusiongemma.constraints.json_keywords import ANNOTATIONS, SUPPORTED
from mlx_diffusiongemma.constraints.json_numbers import decimal_numbers, whole_numbers
from mlx_diffusiongemma.constraints.json_schema import schema_language
from mlx_diffusiongemma.errors import ConstraintError

SUITE = Path(__file__).parent / "json_schema_suite"

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": -17, "maximum": 205},
        "name": {"type": "string", "maxLength": 5},
        "ratio": {"type": "number", "exclusiveMinimum": -1, "maximum": 3},
        "tags": {"type": "array", "items": {"enum": ["é", "b\n"]}, "minItems": 1, "maxItems": 3},
        "when": {"type": "string", "format": "date-time"},
        "note": {"type": ["string", "null"], "minLength": 2},
        "inner": {"$ref": "#/$defs/point"},
    },
    "required": ["name", "inner"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
}
BY_KIND = {
    "oneOf": [
        {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
        {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
        {"type": "string"},
    ]
}
SCHEMAS = [
    ORDER,
    BY_KIND,
    {},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 7}},
    {"properties": {"a": {"type": "null"}, "b": False, "c": {"const": [1, "x"]}}},
    {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 1},
    {"prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "minItems": 3},
    {"type": "string", "pattern": "^[^a-z]{2,4}$|x\\d"},
    {"type": "string", "pattern": '["\\\\]\n?$'},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]},
    {"enum": [1, "1", None, True], "type": ["integer", "null"]},
    {"allOf": [{"type": "integer", "exclusiveMinimum": 0.5, "maximum": 99}]},
    *({"type": "string", "format": name} for name in ("date", "time", "uuid", "ipv4", "email")),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_every_text_that_can_be_written_validates(schema):
    automaton, rng = byte_automaton(schema_language(schema)), np.random.default_rng(2)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    texts = {random_text(automaton, rng) for _ in range(80)}
    for text in texts:
        validator.validate(json.loads(text))
    assert len(texts) > 1


def test_properties_may_be_left_out_unless_they_are_required():
    automaton = byte_automaton(schema_language(ORDER))
    assert automaton.accepts(b'{"name":"","inner":{}}')
    assert automaton.accepts(b'{"id": -17, "name": "ab", "inner": {"x":true}}')
    for text in (b'{"name":""}', b'{"inner":{},"name":""}', b'{"id":206,"name":"","inner":{}}'):
        assert not automaton.accepts(text)


def test_optional_properties_cost_in_proportion_to_their_number():
    def states(count):
        properties = {f"field_{i}": {"type": "string", "maxLength": 20} for i in range(count)}
        schema = {"type": "object", "properties": properties}
        return len(byte_automaton(schema_language(schema)).accepting)

    assert states(20) < 2.5 * states(10)


@pytest.mark.parametrize("low", range(-3, 3))
def test_bounds_of_decimal_numbers(low):
    spelled = [str(number) for number in range(-4, 5)] + [
        "0.5",
        "-0.5",
        "1.5",
        "-1.5",
        "-2.5",
        "9.9",
        "-0.0",
    ]
    for high in range(low, 4):
        for open_low, open_high in ((False, False), (True, False), (False, True), (True, True)):
            if high == low and (open_low or open_high):
                continue
            numbers = decimal_numbers(low, high, open_least=open_low, open_most=open_high)
            automaton = byte_automaton(numbers)
            for text in spelled:
                value = float(text)
                inside = low < value < high
                inside |= value == low and not open_low or value == high and not open_high
                assert automaton.accepts(text.encode()) == (inside and text != "-0.0"), text


@pytest.mark.parametrize(("low", "high"), [(0, 0), (7, 123), (-30, 4), (99, 1001), (-1001, -98)])
def test_bounds_of_whole_numbers(low, high):
    automaton = byte_automaton(whole_numbers(low, high))
    for number in range(-1100, 1100):
        assert automaton.accepts(str(number).encode()) == (low <= number <= high)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {}}, "'not'"),
        ({"type": "object", "properties": {"a": {"minProperties": 1}}}, "a has .* 'minProperties'"),
        ({"type": "string", "format": "uri"}, "'uri'"),
        ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
        ({"type": "number", "minimum": 0.5}, "no whole number"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "limits a string twice"),
        ({"$ref": "#"}, "which it is a part of"),
        ({"$ref": "other.json"}, "other.json"),
        ({"$ref": "#/$defs/none"}, "no schema in the file"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "may fit both"),
        ({"allOf": [{}, {}]}, "holds 2 schemas"),
        ({"enum": [1], "minimum": 0}, "enum beside minimum"),
        ({"type": "float"}, "'float'"),
        ([1], "no schema"),
        ({"type": "string", "pattern": "("}, "not a regular expression"),
    ],
)
def test_what_is_not_supported_is_named(schema, named):
    with pytest.raises(ConstraintError, match=named):
        schema_language(schema)


def test_a_schema_that_nothing_fits_is_refused():
    impossible = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    for schema in (False, {"type": "integer", "minimum": 3, "maximum": 2}, impossible):
        with pytest.raises(ConstraintError, match="nothing can be written"):
            byte_automaton(schema_language(schema))


# JSON-Schema-Test-Suite ------------------------------------------------------------------------

# Every file of draft 2020-12 about a supported keyword, as the sdist of jsonschema 4.26.0 has it,
# and the optional ones about supported formats, patterns and integers. How many of the cases
# compile, and how many of their valid instances can be written as they stand.
CASES_READ, CASES_REFUSED, INSTANCES_WRITTEN = 145, 101, 228


def test_nothing_that_the_suite_calls_invalid_can_be_written():
    read = refused = written = 0
    for path in sorted(SUITE.glob("*.json")):
        for case in json.loads(path.read_text()):
            try:
                automaton = byte_automaton(schema_language(case["schema"]))
            except ConstraintError:
                refused += 1
                continue
            read += 1
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
                try:
                    accepted = automaton.accepts(text.encode())
                except UnicodeEncodeError:
                    continue
                what = f"{path.stem}: {case['description']}: {test['description']}: {text}"
                assert test["valid"] or not accepted, what
                written += accepted
    assert (read, refused, written) == (CASES_READ, CASES_REFUSED, INSTANCES_WRITTEN)


_META = "https://json-schema.org/draft/2020-12/meta/"
KEYWORDS = {
    word
    for uri in REGISTRY
    if uri.startswith(_META)
    for word in REGISTRY.contents(uri)["properties"]
}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "constraints.md").read_text()


def test_every_keyword_of_the_draft_is_supported_or_says_nothing_or_is_refused_by_name():
    assert len(KEYWORDS) > 50
    page = PAGE.split("## JSON Schema")[1].split("\n## ")[0]
    for word in KEYWORDS - SUPPORTED - ANNOTATIONS:
        with pytest.raises(ConstraintError, match=f"# has the keyword '{re.escape(word)}'"):
            schema_language({word: {}, "type": "object"})
    for word in KEYWORDS & SUPPORTED:
        assert f"`{word}`" in page, f"docs/constraints.md does not list {word}"


def test_the_page_lists_no_keyword_that_is_not_supported():
    table = PAGE.split("| about | keywords |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([^`]+)`", table)) - {"number"} <= SUPPORTED


def test_the_suite_has_every_file_about_a_supported_keyword():
    held = {path.stem for path in SUITE.glob("*.json")}
    named = {"$ref": "ref", "$defs": "defs", "definitions": "ref"}
    assert {named.get(word, word) for word in SUPPORTED} <= held
