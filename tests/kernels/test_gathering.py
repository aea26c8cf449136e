"""MLX's product with packed experts, where it is right and where it is known to be wrong."""

import logging
from collections.abc import Callable

import expert_arguments
import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.kernels import (
    PackedExperts,
    dispatch,
    expert_products,
    gathering,
    reference_experts,
)
from mlx_diffusiongemma.kernels.gathering import Way
from mlx_diffusiongemma.model.experts import QuantizedExpertLinear, probe_experts

EXPERTS, OUTPUTS, INPUTS = 8, 8, 32
real_gather_qmm = mx.gather_qmm
Fault = Callable[[int, int, int, bool], bool]  # rows, inputs, experts, sorted


@pytest.fixture
def packed() -> PackedExperts:
    return expert_arguments.packed(EXPERTS, OUTPUTS, INPUTS, 4)


@pytest.fixture
def on_a_gpu(monkeypatch) -> Callable[[Fault], list[int]]:
    """A GPU whose `gather_qmm` is wrong where `fault` says; the rows of its calls."""
    rows: list[int] = []

    def install(fault: Fault) -> list[int]:
        def gather_qmm(x, weight, *rest, sorted_indices, **how):
            rows.append(x.shape[0])
            out = real_gather_qmm(x, weight, *rest, sorted_indices=sorted_indices, **how)
            is_wrong = fault(x.shape[0], x.shape[-1], weight.shape[0], sorted_indices)
            return mx.concatenate([out[:-1], out[-1:] + 3]) if is_wrong else out

        monkeypatch.setattr(mx, "gather_qmm", gather_qmm)
        monkeypatch.setattr(dispatch, "may_probe", lambda: True)
        monkeypatch.setattr(gathering, "_ways", {})
        return rows

    return install


# The known faults, and how each is gone around.
FAULTS: dict[str, tuple[Fault, Way]] = {
    "none": (lambda rows, inputs, experts, sort: False, Way.WHOLE),
    "rows": (lambda rows, inputs, experts, sort: rows > 32_768 and rows % 64 != 0, Way.PIECES),
    "inputs": (lambda rows, inputs, experts, sort: sort and inputs % 64 != 0, Way.ROWS),
    "experts": (lambda rows, inputs, experts, sort: experts == EXPERTS, Way.UNPACKED),
}


def given(rows: int) -> tuple[mx.array, mx.array]:
    experts = np.sort(np.random.default_rng(0).integers(0, EXPERTS, rows)).astype(np.uint32)
    return expert_arguments.rows(rows, INPUTS), mx.array(experts)


@pytest.mark.parametrize("name", FAULTS)
def test_around_a_known_fault_results_are_those_of_a_right_product(name, packed, on_a_gpu, caplog):
    rows = given(32_800)
    want = np.array(reference_experts.products(*rows, packed))
    fault, way = FAULTS[name]
    calls = on_a_gpu(fault)
    with caplog.at_level(logging.WARNING):
        got = [np.array(gathering.products(*rows, packed)) for _ in range(2)]
    assert gathering.way_of(packed, mx.float32) is way
    if way is Way.UNPACKED:
        np.testing.assert_allclose(got[0], want, atol=1e-5)
    else:
        np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], got[0])
    assert len(caplog.records) == (way is not Way.WHOLE)
    if way is Way.PIECES:
        assert calls[-2:] == [16_448, 16_352]


def test_a_product_that_fails_when_it_is_computed_is_gone_around(packed, on_a_gpu, monkeypatch):
    """MLX is lazy: a kernel that does not exist shows at evaluation."""
    on_a_gpu(FAULTS["none"][0])
    real_eval = mx.eval
    failures = []

    def evaluate(*arrays):
        if not failures:
            failures.append(arrays)
            raise RuntimeError("[metal::Device] Unable to load kernel affine_gather_qmm_rhs_nax")
        real_eval(*arrays)

    monkeypatch.setattr(gathering.mx, "eval", evaluate)
    assert gathering.way_of(packed, mx.float32) is Way.PIECES


def test_without_a_right_product_there_is_an_error_with_advice(packed, on_a_gpu, monkeypatch):
    on_a_gpu(FAULTS["experts"][0])
    monkeypatch.setattr(mx, "gather_mm", lambda x, w, rhs_indices: mx.zeros((8, 1, w.shape[-1])))
    with pytest.raises(GenerationError, match="multiplies packed experts wrongly") as error:
        gathering.way_of(packed, mx.float32)
    assert "version of mlx" in error.value.hint


def test_kinds_of_experts_are_probed_once_and_at_loading(packed, on_a_gpu, monkeypatch):
    monkeypatch.setattr(gathering, "_PROBED_ROWS", (8, 65))
    calls = on_a_gpu(FAULTS["none"][0])
    weight = mx.random.normal((EXPERTS, OUTPUTS, INPUTS), key=mx.random.key(0))
    layers = [QuantizedExpertLinear(weight, 32, bits, "affine") for bits in (4, 4, 8, 4)]
    layers.append(QuantizedExpertLinear(weight, 32, 4, "mxfp4"))
    for layer in layers:
        probe_experts(layer, mx.float32)
    assert len(gathering._ways) == 3 and len(calls) == 3 * len(gathering._PROBED_ROWS)
    probe_experts(layers[0], mx.float16)
    assert len(gathering._ways) == 4


def test_on_a_cpu_nothing_is_probed(packed, monkeypatch):
    monkeypatch.setattr(gathering, "_find_way", lambda *given: pytest.fail("probed"))
    monkeypatch.setattr(dispatch, "may_probe", lambda: False)
    gathering.products(*given(3), packed)


@pytest.mark.parametrize("rows", [32_760, 32_768, 32_800, 40_002])
def test_many_rows_are_those_of_unpacked_experts(rows, packed):
    """On a Mac this is the fault itself; elsewhere that all four ways agree."""
    x, experts = given(rows)
    weight = np.array(gathering._unpacked(packed))
    want = np.einsum("rk,rnk->rn", np.array(x), weight[np.array(experts)])
    for multiply in (gathering.products, *gathering._MULTIPLY.values()):
        if multiply is gathering._MULTIPLY[Way.WHOLE] and mx.metal.is_available():
            continue
        np.testing.assert_allclose(np.array(multiply(x, experts, packed)), want, atol=1e-3)


@pytest.mark.parametrize("inputs", [32, 96, 160, 704])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_inputs_that_fill_no_tile(inputs, mode):
    """96 rows for each of 8 experts, which is the sorted product on every GPU."""
    weight = mx.random.normal((EXPERTS, 64, inputs), key=mx.random.key(0)) * inputs**-0.5
    parts = mx.quantize(weight, 32, 4, mode=mode)
    packed = PackedExperts(*parts, *[None] * (3 - len(parts)), 32, 4, mode)
    x = expert_arguments.rows(96 * EXPERTS, inputs)
    experts = mx.array(np.repeat(np.arange(EXPERTS), 96).astype(np.uint32))
    plain = np.array(gathering._unpacked(packed).astype(mx.float32))
    want = np.einsum("erk,enk->ern", np.array(x).reshape(EXPERTS, 96, -1), plain)
    got = np.array(gathering.products(x, experts, packed))
    np.testing.assert_allclose(got, want.reshape(-1, 64), atol=1e-3)


def test_128_experts_of_8_are_those_of_a_loop():
    experts, tokens, top_k = 128, 40, 8
    packed = expert_arguments.packed(experts, 64, 64, 4)
    scores = mx.random.normal((tokens, experts), key=mx.random.key(5))
    routing = kernels.route(scores, mx.ones((experts,)), top_k)
    rows = expert_arguments.rows(tokens * top_k, 64)
    got = np.array(expert_products.down_products(rows, routing, packed))
    plain = np.array(gathering._unpacked(packed))
    for row, expert in enumerate(np.array(routing.sorted_experts)):
        np.testing.assert_allclose(got[row], plain[expert] @ np.array(rows[row]), atol=1e-3)
