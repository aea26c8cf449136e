"""The most likely allowed text: equal to what trying every text finds, on small canvases."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.constraints.byte_automaton import byte_automaton
from mlx_diffusiongemma.constraints.canvas_rules import CanvasRules
from mlx_diffusiongemma.constraints.progress import follow
from mlx_diffusiongemma.constraints.regex import regex_language
from mlx_diffusiongemma.constraints.token_automaton import token_automaton
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary
from mlx_diffusiongemma.errors import ConstraintError

PAD, END = 0, 1
TOKENS = [None, None, b"a", b"b", b"ab", b"bb", "é".encode()[:1], "é".encode()[1:]]
VOCABULARY = Vocabulary.of(TOKENS, end_ids=frozenset({END}), padding_ids=frozenset({PAD}))
PATTERNS = ["a*b", "(?:ab|b){1,3}", "[aé]+", "a?b?a?", ".*", "(?:aa|b.)*é?"]
LENGTH = 4
seeds = st.integers(0, 2**32 - 1)


def rules_for(pattern, **kwargs):
    automaton = token_automaton(byte_automaton(regex_language(pattern)), VOCABULARY)
    return CanvasRules(automaton, automaton.start, **kwargs)


def logits_of(seed, length=LENGTH):
    return np.random.default_rng(seed).normal(0, 3, (length, len(TOKENS))).astype(np.float32)


def allowed_texts(pattern, *, length, budget):
    """Every row of tokens that is allowed, by trying them all."""
    automaton = byte_automaton(regex_language(pattern))
    least = _least_tokens(automaton)
    for row in itertools.product(range(len(TOKENS)), repeat=length):
        end = row.index(END) if END in row else length
        written, rest = row[:end], row[end:]
        if PAD in written or any(token not in (PAD, END) for token in rest):
            continue
        state = automaton.state_after(b"".join(TOKENS[token] for token in written))
        if state < 0 or len(written) > budget:
            continue
        left = 0 if rest or length >= budget else budget - length
        if least[state] <= left and (not rest or automaton.accepting[state]):
            yield row


def _least_tokens(automaton):
    """The fewest tokens to an end from every state, by repeated relaxation over every token."""
    least = np.where(automaton.accepting, 0, 99)
    for _ in range(10):
        for state in range(len(least)):
            for token in filter(None, TOKENS):
                after = state
                for byte in token:
                    after = (
                        after if after < 0 else automaton.next[after, automaton.byte_class[byte]]
                    )
                if after >= 0:
                    least[state] = min(least[state], least[after] + 1)
    return least


def worth(row, logits):
    return sum(float(logits[position, token]) for position, token in enumerate(row))


@pytest.mark.parametrize("budget", [2, 4, 6])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_best_text_is_the_best_of_all(pattern, budget):
    rules = rules_for(pattern, length=LENGTH, budget=budget)
    texts = set(allowed_texts(pattern, length=LENGTH, budget=budget))

    @settings(max_examples=25, deadline=None)
    @given(seeds)
    def agree(seed):
        logits = logits_of(seed)
        found = tuple(rules.read(mx.array(logits[None])).tokens.tolist())
        assert found in texts
        assert worth(found, logits) == pytest.approx(max(worth(t, logits) for t in texts))

    agree()


@pytest.mark.parametrize("budget", [2, 4, 6])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exactly_the_tokens_of_some_text_are_allowed(pattern, budget):
    rules = rules_for(pattern, length=LENGTH, budget=budget)
    masked = np.array(rules.masked(mx.zeros((1, LENGTH, len(TOKENS)))))[0]
    texts = list(allowed_texts(pattern, length=LENGTH, budget=budget))
    for position in range(LENGTH):
        allowed = {row[position] for row in texts}
        assert set(np.flatnonzero(masked[position] == 0)) == allowed
        assert np.isneginf(np.delete(masked[position], list(allowed))).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_noise_is_every_allowed_token_equally_often(pattern):
    rules = rules_for(pattern, length=LENGTH, budget=LENGTH)
    masked = np.array(rules.masked(mx.zeros((1, LENGTH, len(TOKENS)))))[0]
    drawn = np.concatenate(
        [np.array(rules.noise(mx.full((1, LENGTH), t, mx.int32))) for t in range(len(TOKENS))]
    )
    for position in range(LENGTH):
        allowed = np.flatnonzero(masked[position] == 0)
        counts = [np.count_nonzero(drawn[:, position] == token) for token in allowed]
        assert sum(counts) == len(TOKENS)
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("pattern", PATTERNS)
@given(seeds)
@settings(max_examples=25, deadline=None)
def test_joining_keeps_as_many_accepted_tokens_as_it_can(pattern, seed):
    rules = rules_for(pattern, length=LENGTH, budget=LENGTH)
    rng, logits = np.random.default_rng(seed), logits_of(seed)
    reading = rules.read(mx.array(logits[None]))
    tokens, accepted = rng.integers(0, len(TOKENS), LENGTH), rng.random(LENGTH) < 0.6
    joined = np.array(reading.joined(mx.array(tokens[None]), mx.array(accepted[None])))[0]
    texts = set(allowed_texts(pattern, length=LENGTH, budget=LENGTH))
    assert tuple(joined.tolist()) in texts

    def kept(row):
        return int(np.count_nonzero((np.array(row) == tokens) & accepted))

    most = max(map(kept, texts))
    assert kept(joined) == most
    best = max(worth(row, logits) for row in texts if kept(row) == most)
    assert worth(joined.tolist(), logits) == pytest.approx(best)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_positions_that_allow_few_tokens_hold_one_of_them(seed):
    few = {0: np.array([2, 4], np.int32), 2: np.array([3], np.int32)}
    rules = rules_for(".*", length=LENGTH, budget=LENGTH, allowed=few)
    logits = logits_of(seed)
    texts = [
        row
        for row in allowed_texts(".*", length=LENGTH, budget=LENGTH)
        if row[0] in (2, 4) and row[2] == 3
    ]
    found = rules.read(mx.array(logits[None])).tokens.tolist()
    assert tuple(found) in texts
    assert worth(found, logits) == pytest.approx(max(worth(t, logits) for t in texts))
    noise = np.array(rules.noise(mx.array(np.random.default_rng(seed).integers(0, 8, (1, LENGTH)))))
    assert noise[0, 0] in (2, 4)
    assert noise[0, 2] == 3
    masked = np.array(rules.masked(mx.zeros((1, LENGTH, len(TOKENS)))))[0]
    assert [set(np.flatnonzero(masked[at] == 0)) for at in (0, 2)] == [{2, 4}, {3}]


def test_logits_that_rule_everything_out_still_come_to_a_text():
    rules = rules_for("ab", length=LENGTH, budget=LENGTH)
    for value in (-np.inf, np.nan):
        logits = mx.full((1, LENGTH, len(TOKENS)), value)
        tokens = rules.read(logits).tokens.tolist()
        assert b"".join(TOKENS[token] or b"" for token in tokens) == b"ab"


def test_parts_that_contradict_each_other_are_refused():
    with pytest.raises(ConstraintError, match="no text that the constraint allows"):
        rules_for("aab", length=LENGTH, budget=LENGTH, allowed={0: np.array([3], np.int32)})


# Over several canvases -------------------------------------------------------------------------


@given(seeds, st.sampled_from(["(?:ab|b){3,9}", "a{7}", "é{1,4}b*", "a{0,2}b"]), st.integers(0, 8))
@settings(max_examples=80, deadline=None)
def test_an_answer_over_several_canvases_is_whole_and_fits(seed, pattern, spare):
    constraint = CanvasConstraint.regex(pattern)
    least = byte_automaton(regex_language(pattern))
    needed = int(_least_tokens(least)[0])
    text, budget = follow(constraint, VOCABULARY, needed + spare), needed + spare
    written, index = [], 0
    while not text.is_over and len(written) < budget:
        rules = text.rules(3)
        row = rules.read(mx.array(logits_of(seed + index, 3)[None])).tokens.tolist()
        kept = row[: row.index(END)] if END in row else row
        kept = kept[: budget - len(written)]
        written += kept
        if len(kept) < 3:
            break
        text.commit(kept)
        index += 1
    assert len(written) <= budget
    assert least.accepts(b"".join(TOKENS[token] for token in written))


def test_a_constraint_that_cannot_end_in_time_is_refused_before_it_begins():
    constraint = CanvasConstraint.regex("a{7}")
    with pytest.raises(ConstraintError, match="at least 7 tokens, and max_tokens is 6"):
        follow(constraint, VOCABULARY, 6)
    follow(constraint, VOCABULARY, 7)


def test_a_constraint_that_no_token_writes_is_refused():
    with pytest.raises(ConstraintError, match="cannot write"):
        follow(CanvasConstraint.text("xyz"), VOCABULARY, 100)
    with pytest.raises(ConstraintError, match="token 9 is allowed"):
        follow(CanvasConstraint.anything().with_tokens({0: [9]}), VOCABULARY, 100)
