"""Choosing: the probability of each choice is the model's own, in few passes."""

import json
import math
import random
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_diffusiongemma import ConfigError, ConstraintError, GenerationError, load
from mlx_diffusiongemma.bench import tasks
from mlx_diffusiongemma.choosing import branchings, choose
from mlx_diffusiongemma.kernels import Logits

END, VOCABULARY = 0, 8
CANVAS = 24
HOMES = ("in the forest", "near a river", "on a farm", "under a hill", "by the sea")
rows = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=4).map(tuple)


class Letters:
    """A tokenizer whose tokens are the letters `a` to `g`, which are 1 to 7; `?` is special."""

    special_token_ids = frozenset({ord("?") - 96})

    def encode_text(self, text):
        return [ord(letter.lower()) - 96 for letter in text]


class Scripted:
    """A network that says what `says(canvas, position)` says; remembers the canvases of a pass."""

    config = SimpleNamespace(
        vocab_size=VOCABULARY, canvas_length=CANVAS, max_position_embeddings=100
    )

    def __init__(self, says):
        self.says, self.passes = says, []

    def make_cache(self, rewind_tokens=0):
        return SimpleNamespace(
            rewind=lambda position: 0, expect=lambda n: None, arrays=(), nbytes=0, offset=0
        )

    def prefill(self, tokens, kv):
        return tokens

    def predict_rows(self, canvases, caches, beliefs):
        assert set(beliefs) == {None} and len({id(cache) for cache in caches}) == 1
        lists = [canvas[0].tolist() for canvas in canvases]
        self.passes.append(lists)
        said = [[self.says(row, at) for at in range(len(row))] for row in lists]
        return [Logits(mx.array([row], mx.float32)) for row in said]


def chosen(says, choices, *, noises=1, seed=0):
    model = Scripted(says)
    responder = SimpleNamespace(
        model=model,
        tokenizer=Letters(),
        end_ids=frozenset({END}),
        load_seconds=0.0,
        encode=lambda prompt, options: [1, 2],
        check_range=lambda prompt, cache: None,
    )
    result = choose(responder, "what?", choices, seed=seed, noises=noises, chat_template=True)
    return result, model


def by_what_is_written(seed):
    """Logits that depend on what stands before a position alone."""

    def says(row, at):
        rng = np.random.default_rng([seed, *row[:at]])
        return rng.normal(0, 2, VOCABULARY).tolist()

    return says


def written(rng, says, choices):
    """What a writer from left to right writes who keeps to the choices; `choices` as tokens."""
    prefix = ()
    while True:
        ways = sorted({(*c, END)[len(prefix)] for c in choices if c[: len(prefix)] == prefix})
        worth = np.exp([says(list(prefix), len(prefix))[way] for way in ways])
        way = int(rng.choice(ways, p=worth / worth.sum()))
        if way == END:
            return prefix
        prefix = (*prefix, way)


def texts(tokens):
    return ["".join(chr(96 + token) for token in row) for row in tokens]


@given(st.sets(rows, min_size=2, max_size=6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_probabilities_are_those_of_writing_within_the_choices(choices, seed):
    says, choices = by_what_is_written(seed), sorted(choices)
    result, _ = chosen(says, texts(choices))
    got = list(result.probabilities.values())

    def probability(row):
        worth = 1.0
        for at, way in enumerate((*row, END)):
            ways = {(*c, END)[at] for c in choices if c[:at] == row[:at]}
            likely = {w: math.exp(says(list(row), at)[w]) for w in ways}
            worth *= likely[way] / sum(likely.values())
        return worth

    np.testing.assert_allclose(got, [probability(row) for row in choices], rtol=1e-5)
    assert math.fsum(got) == pytest.approx(1, abs=1e-12)
    assert result.choice == max(result.probabilities, key=result.probabilities.get)
    assert list(result.probabilities) == texts(choices)


def test_they_are_how_often_such_a_writer_writes_each():
    choices, says = [(1,), (1, 2), (3, 4, 5, 6), (3, 4, 5, 7)], by_what_is_written(3)
    rng = np.random.default_rng(0)
    counts = {row: 0 for row in choices}
    for _ in range(2000):
        counts[written(rng, says, choices)] += 1
    result, _ = chosen(says, texts(choices))
    shares = [counts[row] / 2000 for row in choices]
    np.testing.assert_allclose(list(result.probabilities.values()), shares, atol=0.035)


def test_length_alone_neither_wins_nor_loses():
    result, model = chosen(lambda row, at: [0.0] * VOCABULARY, ["a", "bcdefgabcdefg"])
    assert list(result.probabilities.values()) == [0.5, 0.5]
    assert result.choice == "a"
    assert len(model.passes[0]) == 1, "nothing is asked where a choice is alone"


@given(st.sets(rows, min_size=2, max_size=40))
def test_there_are_fewer_branchings_than_choices(choices):
    found = branchings(sorted(choices))
    assert 1 <= len(found) < len(choices)
    for place in found:
        assert len(set(place.ways)) == len(place.ways) >= 2


def test_a_choice_that_another_begins_with_ends_where_the_other_goes_on():
    def says(row, at):
        return [math.log(3) if token == END and at == 1 else 0.0 for token in range(VOCABULARY)]

    result, _ = chosen(says, ["ab", "a"])
    assert result.probabilities == pytest.approx({"ab": 0.25, "a": 0.75})


def test_noises_share_a_pass_and_their_answers_are_averaged():
    def says(row, at):  # certain, of what the noise behind says
        return [
            50.0 if token == 1 + row[(at + 1) % len(row)] % 2 else 0.0
            for token in range(VOCABULARY)
        ]

    result, model = chosen(says, ["a", "b"], noises=32)
    (canvases,) = model.passes
    assert len(canvases) == 32 and {len(canvas) for canvas in canvases} == {16}
    share = sum(canvas[1] % 2 == 0 for canvas in canvases) / 32
    assert result.probabilities["a"] == pytest.approx(share)
    assert 0 < share < 1
    again, _ = chosen(says, ["a", "b"], noises=32)
    other, model = chosen(says, ["a", "b"], noises=32, seed=1)
    assert again.probabilities == result.probabilities
    assert model.passes[0] != canvases


def test_canvases_hold_the_longest_choice_and_its_end_and_what_is_written_so_far():
    result, model = chosen(by_what_is_written(1), ["abcdefg" * 3, "abd"], noises=2)
    assert result.stats.canvas_length == 22
    (canvases,) = model.passes
    assert [canvas[:2] for canvas in canvases] == [[1, 2], [1, 2]]
    assert canvases[0][2:] != canvases[1][2:]


@pytest.mark.parametrize(("count", "passes"), [(2, 1), (7, 1), (40, 1), (300, 2)])
def test_a_choice_among_many_takes_one_pass_or_few(count, passes):
    letters = "abcdefg"
    every = [a + b + c + d for a in letters for b in letters for c in letters for d in letters]
    choices = random.Random(1).sample(every, count)
    result, model = chosen(by_what_is_written(0), choices)
    assert len(model.passes) == result.stats.passes == passes
    assert sum(map(len, model.passes)) == result.stats.branchings < count


def test_logits_that_are_no_numbers_choose_nothing():
    with pytest.raises(GenerationError, match="not finite"):
        chosen(lambda row, at: [math.nan] * VOCABULARY, ["a", "b"])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "0 choices are given"),
        (["a"], "one choice is given"),
        ("ab", "choices are 'ab'"),
        (["a", 2], "choices are"),
        (["a", ""], "a choice is empty"),
        (["a", "b", "a"], "the choice 'a' is given twice"),
        (["ab", "AB"], "the choices 'ab' and 'AB' have the same tokens"),
        (["a", "a" * CANVAS], "'a+' has 24 tokens"),
        (["a", "?"], "holds a special token"),
    ],
)
def test_what_is_no_choice_is_refused_by_name(choices, message):
    with pytest.raises(ConstraintError, match=message) as error:
        chosen(by_what_is_written(0), choices)
    assert "\n" not in str(error.value)
    chosen(by_what_is_written(0), ["a", "a" * (CANVAS - 1)])


# With the model in the package ------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime():
    return load("demo")


def test_it_says_what_the_model_answers(runtime):
    rng, right = random.Random(4), 0
    for example in tasks.draw("add", 12, seed=5):
        said = runtime.generate(example.prompt).text
        sum_of, _, total = example.answer.rpartition(" ")
        others = {str(int(total) + by) for by in (1, 10, 100)} | {total[0] + "7" + total[1:]}
        choices = [example.answer, *(f"{sum_of} {other}" for other in others - {total})]
        rng.shuffle(choices)
        result = runtime.choose(example.prompt, choices)
        right += result.choice == said == example.answer
        assert result.stats.passes == 1
        assert math.fsum(result.probabilities.values()) == pytest.approx(1)
    assert right >= 11


def test_it_is_as_unsure_as_what_the_model_was_trained_on(runtime):
    """Gaps were filled with one of some homes, each as often, in sentences of several lengths."""
    divergence = []
    for adjective, animal in (("shy", "fox"), ("kind", "hen"), ("big", "owl"), ("young", "cat")):
        sentence = f"The {adjective} {animal} lives ___."
        choices = [sentence.replace("___", home) for home in HOMES]
        result = runtime.choose(f"Fill the gap: {sentence}", choices)
        divergence.append(-np.mean(np.log(list(result.probabilities.values()))) - math.log(5))
    assert np.mean(divergence) < 0.15, divergence


def test_rows_of_a_pass_do_not_see_each_other_and_leave_the_cache_alone(runtime):
    few = runtime.choose("Hello", ["yes", "no"], noises=2)
    many = runtime.choose("Hello", ["yes", "no", "yes, I do", "no, not yet"], noises=2)
    ways = many.probabilities
    yes = ways["yes"] + ways["yes, I do"]
    assert yes == pytest.approx(few.probabilities["yes"], rel=1e-4)


def test_bad_numbers_and_prompts_are_refused(runtime):
    with pytest.raises(ConfigError, match="noises is 0"):
        runtime.choose("Hello", ["a", "b"], noises=0)
    with pytest.raises(ConfigError, match="seed is -1"):
        runtime.choose("Hello", ["a", "b"], seed=-1)


def test_a_result_is_ready_for_json(runtime):
    result = runtime.choose([{"role": "user", "content": "Hello"}], ["yes", "no"], seed=3)
    values = json.loads(json.dumps(result.to_dict()))
    assert values["text"] == result.choice
    assert values["probabilities"] == result.probabilities
    assert values["stats"]["seed"] == 3
    assert values["stats"]["choosing_seconds"] > 0
