"""How packed experts are multiplied: what is chosen, what is tried, and that MLX groups rows."""

import logging

import expert_arguments
import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.bench import graph
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.kernels import (
    choices,
    dispatch,
    expert_products,
    reference,
    reference_experts,
)
from mlx_diffusiongemma.kernels.expert_products import CHOICE, WAYS

each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def given():
    counts = (2, 0, 3)
    return (
        expert_arguments.rows(5, 32),
        expert_arguments.routing(counts),
        expert_arguments.packed(3, 8, 32, 4),
    )


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """On a machine with Metal, as it were; what is launched there, computed by the twins."""
    names: list[str] = []

    def launch(request: dispatch.Launch) -> list[mx.array]:
        names.append(request.kernel.name)
        x, *others = request.inputs
        how = dict(request.template)
        packed = kernels.PackedExperts(*others[-3:], how["GROUP"], how["BITS"], "affine")
        offsets = np.array(others[-4])
        experts = mx.array(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
        routing = reference.Routing(None, None, others[0], experts, None, others[-4])
        if "F" in how:
            return [reference_experts.gated_products(x, routing, packed)]
        return [reference_experts.down_products(x, routing, packed)]

    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_launcher", launch)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.setattr(kernels.activation, "geglu_halves", reference.geglu_halves)
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    monkeypatch.delenv(CHOICE, raising=False)
    return names


def assert_right(given):
    for product, twin in (
        (kernels.gated_products, reference_experts.gated_products),
        (kernels.down_products, reference_experts.down_products),
    ):
        np.testing.assert_allclose(np.array(product(*given)), np.array(twin(*given)), atol=1e-6)


def test_unless_a_way_is_chosen_mlx_multiplies(given, launches):
    assert_right(given)
    assert launches == []


@each_way
def test_a_way_that_is_chosen_is_tried_and_runs(way, given, launches, monkeypatch):
    monkeypatch.setenv(CHOICE, way)
    for _ in range(2):
        assert_right(given)
    gated, down = f"gate_up_{way}", f"down_{way}"
    assert launches == [gated, gated, down, down, gated, down]  # the first of each is its trial


@each_way
def test_a_way_that_was_chosen_for_a_site_runs_unless_the_environment_says_stock(
    way, given, launches, monkeypatch
):
    monkeypatch.setattr(dispatch, "_chosen", {})
    monkeypatch.setenv(choices.OVERRIDE, f"down_products={way}")
    assert_right(given)
    assert launches == [f"down_{way}"] * 2  # its trial, and the call
    monkeypatch.setenv(CHOICE, "stock")
    assert_right(given)
    assert len(launches) == 2


@each_way
def test_large_and_small_tiles_are_tried_by_themselves(way, launches, monkeypatch):
    monkeypatch.setenv(CHOICE, way)
    packed = expert_arguments.packed(1, 8, 32, 4)
    for tokens in (1, 31, 32, 90):
        x, routing = expert_arguments.rows(tokens, 32), expert_arguments.routing((tokens,))
        kernels.down_products(x, routing, packed)
    assert len(launches) == 4 + 2


@each_way
def test_what_no_kernel_knows_is_multiplied_by_mlx(way, launches, monkeypatch):
    monkeypatch.setenv(CHOICE, way)
    x, routing = expert_arguments.rows(5, 64), expert_arguments.routing((2, 0, 3))
    weight = mx.random.normal((3, 8, 64), key=mx.random.key(0))
    for group, bits, mode in ((32, 4, "mxfp4"), (32, 8, "mxfp8"), (64, 6, "affine")):
        parts = mx.quantize(weight, group, bits, mode=mode)
        biases = parts[2] if mode == "affine" else None
        packed = kernels.PackedExperts(*parts[:2], biases, group, bits, mode)
        assert_right((x, routing, packed))
    assert launches == []


@each_way
def test_kernels_that_fail_their_trial_are_banned(way, given, launches, monkeypatch, caplog):
    def failing(launch):
        raise RuntimeError("[metal::Device] Unable to build metal library from source")

    monkeypatch.setenv(CHOICE, way)
    monkeypatch.setattr(dispatch, "_launcher", failing)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_right(given)
    assert [way in record.message for record in caplog.records] == [True, True]


def test_another_name_is_an_error_that_lists_those_there_are(given, monkeypatch):
    monkeypatch.setenv(CHOICE, "fastest")
    with pytest.raises(ConfigError, match="DGEMMA_EXPERT_MATMUL is 'fastest'") as error:
        kernels.down_products(*given)
    assert "stock, " + ", ".join(WAYS) in error.value.hint


# Tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [16, 32])
def test_the_grid_has_a_tile_for_all_rows_wherever_they_go(rows):
    rng = np.random.default_rng(0)
    for experts in (1, 5, 128):
        for pairs in (1, 7, 16, 130, 2048):
            most = expert_products.most_tiles(pairs, experts, rows)
            worst = np.ones(experts, int)[:pairs]  # one row each, and the rest in whole tiles
            worst[0] += pairs - worst.sum()
            spread = [worst, rng.multinomial(pairs, np.ones(experts) / experts)]
            assert max(int((-(-counts // rows)).sum()) for counts in spread) <= most
            assert most <= pairs


# MLX's grouped product ------------------------------------------------------------------------

EXPERTS, TOP_K = 128, 8  # of the released model


def rows_of_products(tokens: int) -> list[int]:
    """How many rows each `gather_qmm` gets of a canvas, as on Metal."""
    shape = (EXPERTS, 8, 32)
    packed = kernels.PackedExperts(*mx.quantize(mx.zeros(shape), 32, 4), 32, 4, "affine")

    def run(x: mx.array, scores: mx.array) -> mx.array:
        routing = kernels.route(scores, mx.ones((EXPERTS,)), TOP_K)
        gated = kernels.gated_products(x, routing, packed)
        return kernels.down_products(mx.tile(gated, (1, 8)), routing, packed)

    with dispatch.as_on_metal():
        nodes = graph.trace(run, [mx.zeros((tokens, 32)), mx.zeros((tokens, EXPERTS))])
    return [node.inputs[0].shape[0] for node in nodes if node.name == "GatherQMM"]


@pytest.mark.parametrize("tokens", [16, 17, 32, 63, 64])
def test_a_short_canvas_stays_in_the_grouped_product(tokens):
    """MLX 0.32 groups rows from 16 in all and four for each expert on."""
    assert rows_of_products(tokens) == [EXPERTS * 4] * 2


@pytest.mark.parametrize("tokens", [1, 8, 65, 256])
def test_one_token_and_a_long_canvas_get_no_rows_that_nobody_needs(tokens):
    assert rows_of_products(tokens) == [tokens * TOP_K] * 2


def test_rows_for_grouping_change_nothing(monkeypatch):
    counts = (2, 0, 3)
    given = (
        expert_arguments.rows(5, 32),
        expert_arguments.routing(counts),
        expert_arguments.packed(3, 8, 32, 4),
    )
    want = [kernels.gated_products(*given), kernels.down_products(*given)]
    monkeypatch.setattr(dispatch, "plans_for_metal", lambda: True)
    got = [kernels.gated_products(*given), kernels.down_products(*given)]
    for one, other in zip(got, want, strict=True):
        assert mx.array_equal(one, other)


@pytest.mark.parametrize("way", ["stock", *WAYS])
def test_a_norm_that_is_still_to_be_taken_is_taken_once(way, given, monkeypatch):
    x, routing, packed = given
    weight = mx.arange(1, x.shape[-1] + 1) / 8
    norm = kernels.RowNorm(mx.arange(1, x.shape[0] + 1) / 4, weight)
    everyone = mx.arange(x.shape[0], dtype=mx.uint32)
    want = reference_experts.gated_products(
        reference.gather_normed(x, norm, everyone), routing, packed
    )
    monkeypatch.setenv(CHOICE, way)

    def launch(request: dispatch.Launch) -> list[mx.array]:
        if request.kernel.name == "gather_normed":
            rows, *parts, tokens = request.inputs
            return [reference.gather_normed(rows, kernels.RowNorm(*parts), tokens)]
        if request.kernel.name == "geglu":
            return [reference.geglu_halves(request.inputs[0])]
        return [reference_experts.gated_products(request.inputs[0], routing, packed)]

    with dispatch.forced(launch):
        got = kernels.gated_products(x, routing, packed, norm)
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5, atol=1e-5)
