"""Constraints as values: composed, compared, checked when they are made."""

import json

import pydantic
import pytest

from mlx_diffusiongemma.constraints import CanvasConstraint, open_scaffold
from mlx_diffusiongemma.constraints.byte_automaton import byte_automaton
from mlx_diffusiongemma.constraints.constraint import language_of
from mlx_diffusiongemma.errors import ConstraintError


def accepts(constraint, text):
    return byte_automaton(language_of(constraint.spans)).accepts(text.encode())


def test_parts_follow_each_other():
    constraint = (
        CanvasConstraint.text("Total: ")
        + CanvasConstraint.regex(r"\d+")
        + CanvasConstraint.choices([" EUR", " USD"])
    )
    assert accepts(constraint, "Total: 12 EUR")
    assert not accepts(constraint, "Total: 12")
    assert not accepts(constraint, "Total: 12 GBP")


def test_equal_constraints_are_equal_and_have_one_hash():
    made = [CanvasConstraint.json_schema({"type": "integer"}) for _ in range(2)]
    made.append(CanvasConstraint.json_schema('{"type": "integer"}'))
    assert len(set(made)) == 1


class Person(pydantic.BaseModel):
    """A record, as people write them."""

    name: str = pydantic.Field(max_length=9)
    age: int | None = None


def test_a_pydantic_model_is_a_schema():
    assert accepts(CanvasConstraint.json_schema(Person), '{"name":"Ada","age":36}')
    assert not accepts(CanvasConstraint.json_schema(Person), '{"age":36}')


def test_tokens_at_a_position_are_narrowed_never_widened():
    constraint = CanvasConstraint.anything().with_tokens({3: [7, 5]})
    assert constraint.with_tokens({3: [5, 9], 1: [2]}).tokens == ((1, (2,)), (3, (5,)))
    with pytest.raises(ConstraintError, match="position 3 allows no token"):
        constraint.with_tokens({3: [9]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CanvasConstraint.regex("("), "not a regular expression"),
        (lambda: CanvasConstraint.json_schema("{"), "not JSON"),
        (lambda: CanvasConstraint.json_schema({"not": {}}), "'not'"),
        (lambda: CanvasConstraint.choices([]), "choices are"),
        (lambda: CanvasConstraint.choices(["a", ""]), "choices are"),
        (lambda: CanvasConstraint.anything().with_tokens({0: []}), "no token"),
        (lambda: CanvasConstraint.anything().with_tokens({-1: [2]}), "position -1"),
        (
            lambda: CanvasConstraint.text("a") + CanvasConstraint.text("b").with_tokens({0: [1]}),
            "follows another",
        ),
        (lambda: CanvasConstraint.json_schema(json.loads("[" * 400 + "]" * 400)), "no schema"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make, message):
    with pytest.raises(ConstraintError, match=message):
        make()


def test_a_schema_nested_too_deep_is_refused():
    schema = {"type": "integer"}
    for _ in range(900):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ConstraintError, match="too deep|not JSON|states"):
        accepts(CanvasConstraint.json_schema(schema), "1")


# Scaffolds --------------------------------------------------------------------------------------


def test_a_scaffold_keeps_its_text_and_opens_its_holes():
    template = "Name: <fill>\nBorn: <fill:regex:\\d{4}>, <fill:choices:f|m> <b>\n"
    constraint = open_scaffold(template)
    assert accepts(constraint, "Name: Ada Lovelace\nBorn: 1815, f <b>\n")
    assert not accepts(constraint, "Name: Ada\nLovelace\nBorn: 1815, f <b>\n")
    assert not accepts(constraint, "Name: Ada\nBorn: 181, f <b>\n")
    assert not accepts(constraint, "Name: Ada\nBorn: 1815, x <b>\n")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no holes", "no hole"),
        ("<fill:24>", "cannot be read"),
        ("a <fill", "cannot be read"),
        ("<fill:regex:a\n>", "cannot be read"),
        ("<fill:regex:<fill>>", "cannot be read"),
        ("<fill:regex:(>", "not a regular expression"),
        ("<fill:choices:a||b>", "choices are"),
    ],
)
def test_a_hole_that_cannot_be_read_is_refused(template, message):
    with pytest.raises(ConstraintError, match=message):
        open_scaffold(template)
