"""Routing kernels against their twin, under the checker, in every order and dtype."""

import emulated
import emulator
import mlx.core as mx
import numpy as np
import pytest
from emulated import CHECKED, each_dtype, each_dtype_and_run, each_run
from tolerances import ROUTING_WEIGHTS

from mlx_diffusiongemma.kernels import dispatch, reference, routing

pytestmark = pytest.mark.kernels

INF, NAN = float("inf"), float("nan")


def drawn(tokens, experts, dtype=mx.float32, seed=0):
    """Scores and scales; in 16 bits many scores of a row are equal."""
    rng = np.random.default_rng(seed)
    scores = mx.array(rng.normal(size=(tokens, experts)) * 2, mx.float32).astype(dtype)
    return scores, mx.array(rng.uniform(0.5, 2.0, experts), mx.float32).astype(dtype)


def in_two_launches(scores, scale, top_k, mode="checked", schedule="in order"):
    choice = routing.choose_launch(scores, scale, top_k)
    experts, weights = emulated.run(choice, mode, schedule)
    order = routing.sort_launch(experts, scores.shape[1])
    return reference.Routing(experts, weights, *emulated.run(order, mode, schedule))


def in_one_launch(scores, scale, top_k, mode="checked", schedule="in order"):
    launch = routing.route_launch(scores, scale, top_k)
    return reference.Routing(*emulated.run(launch, mode, schedule))


def assert_equal(got, want):
    """Everything that counts is equal, weights up to rounding."""
    for name, one, other in zip(want._fields, got, want, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        if name != "weights":
            np.testing.assert_array_equal(np.array(one), np.array(other), err_msg=name)
    np.testing.assert_allclose(np.array(got.weights), np.array(want.weights), rtol=ROUTING_WEIGHTS)


def assert_consistent(got, experts):
    """The order fits the choices, whatever these are; and no expert is chosen twice by a row."""
    chosen = np.array(got.experts)
    assert chosen.max(initial=0) < experts
    assert all(len(set(row)) == len(row) for row in chosen.tolist())
    tokens, ordered, inverse = reference.sort_by_expert(got.experts)
    assert_equal(
        got,
        reference.Routing(
            got.experts,
            got.weights,
            tokens,
            ordered,
            inverse,
            reference.expert_offsets(got.experts, experts),
        ),
    )


@each_dtype_and_run
def test_a_canvas_is_routed_as_by_the_twin(dtype, mode, schedule):
    for tokens in (1, 7, 32, 33, 70):
        arguments = (*drawn(tokens, 128, dtype, seed=tokens), 8)
        got = in_one_launch(*arguments, mode, schedule)
        assert_equal(got, reference.route(*arguments))


@each_run
def test_a_whole_canvas_of_the_released_size(mode, schedule):
    arguments = (*drawn(256, 128), 8)
    assert_equal(in_one_launch(*arguments, mode, schedule), reference.route(*arguments))


@each_dtype_and_run
def test_a_long_prompt_is_routed_as_by_the_twin(dtype, mode, schedule):
    for tokens in (1, 9, 100):  # the last threadgroup of the choice is not full
        arguments = (*drawn(tokens, 128, dtype, seed=tokens), 8)
        got = in_two_launches(*arguments, mode, schedule)
        assert_equal(got, reference.route(*arguments))


SIZES = [(5, 8, 2), (6, 5, 5), (40, 33, 3), (40, 40, 1), (3, 300, 32)]


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SIZES)
@pytest.mark.parametrize("routed", [in_one_launch, in_two_launches])
def test_numbers_of_experts_that_fill_no_simdgroup(routed, tokens, experts, top_k):
    arguments = (*drawn(tokens, experts), top_k)
    assert_equal(routed(*arguments), reference.route(*arguments))


def test_the_number_of_tokens_decides_between_one_launch_and_two(monkeypatch):
    seen = []

    def launched(launch):
        seen.append(launch.kernel.name)
        return emulated.run(launch, "fast")

    with dispatch.forced(launched):
        for tokens in (routing.ONE_LAUNCH_TOKENS, routing.ONE_LAUNCH_TOKENS + 1):
            arguments = (*drawn(tokens, 8), 2)
            assert_equal(routing.route(*arguments), reference.route(*arguments))
    assert seen == ["route", "choose_experts", "sort_by_expert"]


def loads(tokens, counts, experts, top_k):
    """Scores with which expert e gets counts[e] tokens; those after `counts` share what is left."""
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(tokens, experts)).astype(np.float32)
    room = np.full(tokens, top_k)
    for expert, count in enumerate(counts):
        chosen = np.argsort(-room, kind="stable")[:count]
        room[chosen] -= 1
        scores[:, expert] = -50
        scores[chosen, expert] = 50 + rng.uniform(size=count)
    assert room.min() >= 0
    return mx.array(scores)


@pytest.mark.parametrize(("mode", "schedule"), CHECKED)
@pytest.mark.parametrize("routed", [in_one_launch, in_two_launches])
def test_experts_with_no_one_few_and_all_tokens(routed, mode, schedule):
    counts = [64, 0, 1, 15, 16, 17, 33, 0]
    arguments = (loads(64, counts, 40, 4), mx.ones((40,)), 4)
    got = routed(*arguments, mode, schedule)
    assert np.diff(np.array(got.offsets))[: len(counts)].tolist() == counts
    assert_equal(got, reference.route(*arguments))


@pytest.mark.parametrize("routed", [in_one_launch, in_two_launches])
def test_of_equal_scores_the_lower_expert_comes_first(routed):
    rows = [[0.0] * 40, [-1.0] * 20 + [2.0] * 20, [1.0, 3.0, 3.0, 1.0] + [0.0] * 35 + [3.0]]
    got = routed(mx.array(rows), mx.ones((40,)), 4)
    assert got.experts.tolist() == [[0, 1, 2, 3], [20, 21, 22, 23], [1, 2, 39, 0]]
    assert_equal(got, reference.route(mx.array(rows), mx.ones((40,)), 4))


def test_scores_far_apart_get_the_weights_of_the_twin():
    """Probabilities that round to 0 are ties to the twin; to the kernel their scores are not."""
    scores = mx.array(np.random.default_rng(2).normal(size=(40, 40)) * 300, mx.float32)
    got, want = in_one_launch(scores, mx.ones((40,)), 4), reference.route(scores, mx.ones((40,)), 4)
    probs = mx.softmax(scores, axis=-1)
    ours, theirs = (mx.take_along_axis(probs, r.experts, axis=-1) for r in (got, want))
    assert mx.array_equal(ours, theirs)
    weights = np.array(got.weights), np.array(want.weights)
    np.testing.assert_allclose(
        *weights, rtol=ROUTING_WEIGHTS, atol=1e-37
    )  # below, floats get coarse
    assert_consistent(got, 40)


BROKEN = {
    "a NaN": lambda row: row | {3: NAN},
    "all NaN": lambda row: dict.fromkeys(row, NAN),
    "+inf": lambda row: row | {3: INF},
    "+inf and -inf": lambda row: row | {3: INF, 4: -INF},
    "all -inf": lambda row: dict.fromkeys(row, -INF),
    "all +inf": lambda row: dict.fromkeys(row, INF),
}


@each_dtype
@pytest.mark.parametrize("routed", [in_one_launch, in_two_launches])
@pytest.mark.parametrize("name", BROKEN)
def test_a_row_without_probabilities_gets_nan_weights_and_real_experts(name, routed, dtype):
    scores, scale = drawn(33, 40, dtype)
    rows = scores.astype(mx.float32).tolist()
    rows[5] = list(BROKEN[name](dict(enumerate(rows[5]))).values())
    arguments = (mx.array(rows).astype(dtype), scale, 4)
    got, want = routed(*arguments), reference.route(*arguments)
    assert mx.isnan(got.weights).tolist() == mx.isnan(want.weights).tolist()
    assert np.isnan(np.array(got.weights)).sum() == 4
    assert_consistent(got, 40)
    others = [row for row in range(33) if row != 5]
    assert np.array_equal(np.array(got.experts)[others], np.array(want.experts)[others])


@pytest.mark.parametrize("finite", [1, 3, 4])
def test_forbidden_experts_come_last_with_no_weight(finite):
    scores = mx.array([[-INF] * (40 - finite) + [1.0] * finite] * 2)
    got, want = in_one_launch(scores, mx.ones((40,)), 4), reference.route(scores, mx.ones((40,)), 4)
    assert_equal(got, want)
    assert (np.array(got.weights)[:, finite:] == 0).all()


@pytest.mark.emulator
@each_dtype
@pytest.mark.parametrize("tokens", [1, 40])
def test_apple_s_compiler_would_take_them(dtype, tokens):
    scores, scale = drawn(tokens, 8, dtype)
    experts = mx.zeros((tokens, 2), mx.uint32)
    for launch in (
        routing.route_launch(scores, scale, 2),
        routing.choose_launch(scores[:, :5], scale[:5], 2),  # few numbers: in constant memory
        routing.sort_launch(experts, 8),
    ):
        kernel = dispatch.metal_kernel(launch.kernel)
        assert emulator.type_errors(kernel, **launch.arguments()) == []


def test_threadgroup_memory_fits_whatever_the_number_of_experts():
    for experts in (2, 128, 248, 249, 512, 2048):
        launch = routing.sort_launch(mx.zeros((4, 2), mx.uint32), experts)
        simdgroups = dict(launch.template)["SIMDGROUPS"]
        assert 1 <= simdgroups <= 32
        assert 4 * experts * (simdgroups + 1) <= 32 * 1024
