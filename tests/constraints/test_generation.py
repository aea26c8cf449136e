"""Generation under a constraint: whatever the network says, the answer keeps to it."""

import json
import re

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mlx_diffusiongemma import (
    ConfigError,
    GenerationOptions,
    SamplerSettings,
    SeededDraws,
    load,
    sampling,
)
from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.constraints.progress import follow
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary
from mlx_diffusiongemma.denoising import denoising_loop
from mlx_diffusiongemma.errors import ConstraintError
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.options import SamplerName
from mlx_diffusiongemma.passes import carried_out

PAD, END = 0, 1
TOKENS = [None, None, *(bytes([letter]) for letter in b"abc01"), b"ab", b"0a", b"bc1"]
VOCABULARY = Vocabulary.of(TOKENS, end_ids=frozenset({END}), padding_ids=frozenset({PAD}))
PATTERN = "(?:ab|c)+0*1?"
LENGTH = 9
MATCHING = CanvasConstraint.regex(PATTERN)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def runtime():
    return load("demo")


def denoised(seed, sampler: SamplerName, seen, constraint=MATCHING):
    """Steps over random logits; the canvases that the network is shown go into `seen`."""
    rng = np.random.default_rng(seed)
    rules = constraint and follow(constraint, VOCABULARY, LENGTH).rules(LENGTH)

    def predict(asked):
        seen.append(asked.canvas)
        seen.append(asked.belief)
        return Logits(
            mx.array(rng.normal(0, 5, (1, LENGTH, len(TOKENS))).astype(np.float32)), cap=9.0
        )

    loop = denoising_loop(
        SeededDraws(seed),
        SamplerSettings(max_denoising_steps=5, entropy_bound=3.0, sampler=sampler),
        canvas_length=LENGTH,
        vocab_size=len(TOKENS),
        rules=rules,
    )
    return rules, list(carried_out(loop, predict, print))


@pytest.mark.parametrize("sampler", ["entropy-bound", "argmax", "confidence"])
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_whatever_the_network_says_the_text_matches(sampler, seed):
    seen = []
    rules, steps = denoised(seed, sampler, seen)
    forbidden = np.isneginf(np.array(rules.masked(mx.zeros((1, LENGTH, len(TOKENS)))))[0])
    for step in steps:
        tokens = step.argmax_canvas[0].tolist()
        end = tokens.index(END) if END in tokens else LENGTH
        assert re.fullmatch(PATTERN, b"".join(TOKENS[t] for t in tokens[:end]).decode())
        assert set(tokens[end:]) <= {END, PAD}
    for canvas in seen[::2]:  # noise and accepted tokens
        assert not forbidden[np.arange(LENGTH), np.array(canvas)[0]].any()
    for belief in seen[3::2]:  # self-conditioning
        assert np.isneginf(np.array(belief.logits.values())[0][forbidden]).all()


pins = st.dictionaries(
    st.integers(0, LENGTH - 1), st.sets(st.integers(2, len(TOKENS) - 1), min_size=1), max_size=5
)


@pytest.mark.parametrize("sampler", ["entropy-bound", "argmax", "confidence"])
@given(st.integers(0, 2**32 - 1), pins)
@settings(max_examples=15, deadline=None)
def test_whatever_the_network_says_pins_hold(sampler, seed, allowed):
    seen = []
    constraint = CanvasConstraint.regex("[abc01]*").with_tokens(allowed)
    _, steps = denoised(seed, sampler, seen, constraint)
    for canvas in [*seen[::2], *(step.argmax_canvas for step in steps)]:
        tokens = canvas[0].tolist()
        for position, among in allowed.items():
            assert tokens[position] in among


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_without_a_constraint_the_steps_are_the_plain_ones_bit_by_bit(seed):
    """The loop against the steps of docs/contract.md written out, with the same draws."""
    seen = []
    _, steps = denoised(seed, "entropy-bound", seen, constraint=None)
    rng, draws, shape = np.random.default_rng(seed), SeededDraws(seed), (1, LENGTH)
    canvas = draws.initial_canvas(shape, len(TOKENS))
    for index, step in enumerate(steps):
        assert np.array_equal(seen[2 * index], canvas)
        values = mx.array(rng.normal(0, 5, (*shape, len(TOKENS))).astype(np.float32))
        logits = Logits(values, cap=9.0).at(
            sampling.temperature(5 - index, 5, t_min=0.4, t_max=0.8)
        )
        statistics = sampling.logit_statistics(logits)
        accepted = sampling.accept_within_bound(statistics.entropy, 3.0)
        candidates, noise = draws.candidates(logits, statistics), draws.renoise(shape, len(TOKENS))
        canvas = mx.where(accepted, candidates, noise)
        assert np.array_equal(step.argmax_canvas, mx.argmax(logits.values(), axis=-1))
        assert np.array_equal(step.accepted, accepted)
        assert np.array_equal(step.entropy, statistics.entropy)


def test_accepted_tokens_of_the_next_canvas_fit_each_other():
    """With everything accepted, the canvas that the network sees next is a whole text."""
    seen = []
    rng = np.random.default_rng(0)
    rules = follow(CanvasConstraint.regex("(?:ab|ba)*"), VOCABULARY, 8).rules(8)
    loop = denoising_loop(
        SeededDraws(3),
        SamplerSettings(max_denoising_steps=9, entropy_bound=1e3),
        canvas_length=8,
        vocab_size=len(TOKENS),
        rules=rules,
    )

    def predict(asked):
        seen.append(asked.canvas[0].tolist())
        return Logits(mx.array(rng.normal(0, 0.3, (1, 8, len(TOKENS))).astype(np.float32)))

    list(carried_out(loop, predict, print))
    for tokens in seen[1:]:
        end = tokens.index(END) if END in tokens else 8
        assert re.fullmatch("(?:ab|ba)*", b"".join(TOKENS[t] for t in tokens[:end]).decode())
    assert len({tuple(tokens) for tokens in seen[1:]}) > 1


# With the model in the package ------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [16, 40, 90])
def test_an_answer_follows_a_schema_over_several_canvases(runtime, max_tokens):
    constraint = CanvasConstraint.json_schema(SCHEMA)
    options = GenerationOptions(
        seed=1, max_tokens=max_tokens, constraint=constraint, max_denoising_steps=6
    )
    result = runtime.generate("Tell me a story about a frog.", options)
    Draft202012Validator(SCHEMA).validate(json.loads(result.text))
    assert result.finish_reason == "stop"
    assert len(result.token_ids) <= max_tokens


def test_an_answer_ends_where_nothing_can_follow(runtime):
    options = GenerationOptions(seed=1, constraint=CanvasConstraint.regex(r"\d{3}-\d{4}"))
    result = runtime.generate("2 + 2 =", options)
    assert re.fullmatch(r"\d{3}-\d{4}", result.text)
    assert len(result.stats.denoising_steps) == 1


def test_a_constrained_answer_leaves_no_trace_in_a_plain_one(runtime):
    options = GenerationOptions(seed=4, max_tokens=40, max_denoising_steps=5)
    bound = GenerationOptions(
        seed=4, max_tokens=40, max_denoising_steps=5, constraint=CanvasConstraint.regex("[a-f]{9}")
    )
    before = runtime.generate("2 + 2 =", options)
    runtime.generate("2 + 2 =", bound)
    after = runtime.generate("2 + 2 =", options)
    assert after.token_ids == before.token_ids
    assert after.stats.denoising_steps == before.stats.denoising_steps


def test_in_a_batch_it_is_the_same_answer(runtime):
    options = [
        GenerationOptions(seed=seed, max_denoising_steps=5, constraint=constraint, max_tokens=40)
        for seed, constraint in enumerate([CanvasConstraint.regex("[a-f]{30,60}"), None])
    ]
    together = runtime.generate_batch(["2 + 2 =", "2 + 3 ="], options)
    alone = [runtime.generate(p, o) for p, o in zip(["2 + 2 =", "2 + 3 ="], options, strict=True)]
    assert [r.text for r in together] == [r.text for r in alone]


def test_what_cannot_end_in_time_is_refused_before_the_model_runs(runtime):
    options = GenerationOptions(max_tokens=3, constraint=CanvasConstraint.json_schema(SCHEMA))
    with pytest.raises(ConstraintError, match="needs at least .* tokens, and max_tokens is 3"):
        next(runtime.stream("2 + 2 =", options))


@pytest.mark.parametrize(
    "other", [{"mode": "ar"}, {"mode": "auto"}, {"shrink_canvas": True}, {"thinking": True}]
)
def test_what_does_not_go_with_a_constraint_is_refused(other):
    with pytest.raises(ConfigError, match=next(iter(other))):
        GenerationOptions(constraint=CanvasConstraint.anything(), **other)
    with pytest.raises(ConfigError, match="constraint is 'a'"):
        GenerationOptions(constraint="a")
