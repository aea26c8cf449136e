"""Regular expressions: the automaton accepts what `re` matches as a whole, or refuses by name."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_texts import random_text

from mlx_diffusiongemma.constraints.byte_automaton import MOST_STATES, byte_automaton
from mlx_diffusiongemma.constraints.language import characters, of
from mlx_diffusiongemma.constraints.regex import regex_language
from mlx_diffusiongemma.errors import ConstraintError

PATTERNS = [
    r"ab|a*c",
    r"(?:a|ab)(?:c|bcd)?d*",
    r"[^ab]{1,3}a?",
    r"\d{2,3}(?:\.\d+)?",
    r"^\w+\s?[.-]$",
    r"(a?){3}b+?",
    r"a{0}b{2,}|\u00e9",
    r".*é.",
    r"(?P<name>x|y)\.|",
    r"[\w.-]+@\S+",
    r"[^\d\W]\D",
    r"(?:|a)(?:b|)c*",
    r"\x41[\]\\-]",
]
texts = st.text(alphabet="abcdxy0189.-@ \n_Aé]\\𝒳٣\u00a0", max_size=7)


def automaton_of(pattern):
    return byte_automaton(regex_language(pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_is_accepted_exactly_when_it_matches(pattern):
    automaton = automaton_of(pattern)

    # ASCII classes: what is written is never more than `re` accepts, in Unicode or in ASCII.
    @settings(max_examples=150, deadline=None)
    @given(texts)
    def agree(text):
        both = all(re.fullmatch(pattern, text, flags) for flags in (re.UNICODE, re.ASCII))
        assert automaton.accepts(text.encode()) == bool(both) or (text.endswith("\n") and both)

    agree()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_text_that_can_be_written_matches(pattern):
    automaton, rng = automaton_of(pattern), np.random.default_rng(1)
    for _ in range(60):
        text = random_text(automaton, rng).decode()
        assert re.fullmatch(pattern, text)


@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF))
@settings(max_examples=150, deadline=None)
def test_ranges_of_characters_are_their_utf8(low, high, probe):
    low, high = min(low, high), max(low, high)
    if characters((low, high)).ranges:
        automaton = byte_automaton(characters((low, high)))
        for letter in (low, high, probe, low - 1, high + 1):
            if 0 <= letter <= 0x10FFFF and not 0xD800 <= letter <= 0xDFFF:
                assert automaton.accepts(chr(letter).encode()) == (low <= letter <= high)


def test_sets_of_characters_follow_set_algebra():
    vowels, early = of("aeiou"), characters((97, 101))
    assert (vowels & early) == of("ae")
    assert (vowels | early) == of("abcdeiou")
    assert ~~vowels == vowels


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(", "not a regular expression"),
        ("[z-a]", "not a regular expression"),
        ("a{3,1}", "not a regular expression"),
        ("(?=a)b", "look-around"),
        (r"\bfoo", "word borders"),
        ("a^b", "anchors"),
        (r"(a)\1", "back-references"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        ("(?>a)", "atomic groups"),
        ("a*+", "possessive repeats"),
    ],
)
def test_what_is_not_supported_is_named(pattern, named):
    with pytest.raises(ConstraintError, match=named):
        regex_language(pattern)


def test_an_impossible_pattern_is_refused():
    with pytest.raises(ConstraintError, match="nothing can be written"):
        automaton_of(r"[^\s\S]")


@pytest.mark.parametrize("pattern", ["(?:a|b)*a(?:a|b){40}", f"a{{{MOST_STATES + 1}}}"])
def test_a_pattern_that_grows_too_large_is_refused(pattern):
    with pytest.raises(ConstraintError, match="states"):
        automaton_of(pattern)


def test_a_long_bounded_string_stays_small():
    """Ten states a character at most: other builders need minutes and gigabytes for this one."""
    automaton = automaton_of(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]){0,200}"')
    assert len(automaton.accepting) < 2000
