"""The bodies can fail: each is run with a fault in what computes on the device under test.

The device is the CPU here. A fault acts only where `place` computes, and not where the reference is
computed, as the fault of a GPU would.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mutants
import pytest
import test_experts
import test_models
import test_operations
import test_prefill_memory
from operations import CASES, computed
from places import Place, on_the_cpu

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.experts import ExpertLinear, QuantizedExpertLinear
from mlx_diffusiongemma.quantization import Quantization

Install = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Faulty(Place):
    """A CPU on which something is wrong."""

    install: Install = field(kw_only=True)

    @contextmanager
    def default(self) -> Iterator[None]:
        with super().default(), pytest.MonkeyPatch.context() as patch:
            self.install(patch)
            yield


def faulty(install: Install) -> Faulty:
    return Faulty(mx.cpu, lambda name, value: None, install=install)


def nudged(array: mx.array, share: float) -> mx.array:
    """One number off by a share of the largest, one truth turned, one integer raised."""
    flat = array.reshape(-1)
    place = mx.arange(flat.size) == flat.size // 2
    if array.dtype == mx.bool_:
        return (flat != place).reshape(array.shape)
    if not mx.issubdtype(array.dtype, mx.floating):
        return (flat + place.astype(array.dtype)).reshape(array.shape)
    finite = mx.where(mx.isfinite(flat), mx.abs(flat), 0)
    return (flat + place * mx.max(finite) * share).astype(array.dtype).reshape(array.shape)


def with_one_output_nudged(name: str, output: int, share: float) -> Install:
    """The operation, and of all that it returns one array with one wrong number."""

    def install(patch: pytest.MonkeyPatch) -> None:
        original = getattr(kernels, name)

        def wrong(*arguments: Any) -> Any:
            result = original(*arguments)
            if isinstance(result, mx.array):
                return nudged(result, share)
            parts = [nudged(a, share) if i == output else a for i, a in enumerate(result)]
            return type(result)(*parts)

        patch.setattr(kernels, name, wrong)

    return install


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_number_of_an_operation_is_noticed(name):
    calls = len(CASES[name](mx.float32))
    outputs = len(on_the_cpu(lambda: computed(CASES[name](mx.float32)))) // calls
    for dtype, share in (mx.float32, 5e-5), (mx.bfloat16, 0.07):
        for output in range(outputs):
            place = faulty(with_one_output_nudged(name, output, share))
            with pytest.raises(AssertionError):
                test_operations.hold(place, CASES[name], dtype)


def test_an_attention_that_forgets_the_mask_is_noticed(monkeypatch):
    attend = mx.fast.scaled_dot_product_attention

    def install(patch: pytest.MonkeyPatch) -> None:
        def forgetful(*arrays: mx.array, scale: float, mask: object) -> mx.array:
            return attend(*arrays, scale=scale, mask=None)

        patch.setattr(mx.fast, "scaled_dot_product_attention", forgetful)

    for name in ("sliding, prompt", "full, prompt"):
        with pytest.raises(AssertionError):
            test_operations.test_attention_computes_what_the_cpu_computes(
                faulty(install), name, mx.bfloat16
            )


def test_a_packed_product_that_leaves_out_a_bias_is_noticed():
    multiply = mx.quantized_matmul

    def install(patch: pytest.MonkeyPatch) -> None:
        def wrong(x: mx.array, words: mx.array, scales: mx.array, *biases: Any, **how: Any) -> Any:
            return multiply(x, words, scales, *[bias * 0.99 for bias in biases], **how)

        patch.setattr(mx, "quantized_matmul", wrong)

    error = test_operations.packed_error(faulty(install), Quantization(4, 64), 33, mx.float32)
    assert error > 1e-3


def no_v_norm(patch: pytest.MonkeyPatch) -> None:
    mutants.no_v_norm(None, patch)


def nothing_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernels, "accept_within_bound", lambda entropy, bound: entropy < -1.0)


def gates_for_values(patch: pytest.MonkeyPatch) -> None:
    """Experts take the one half of their projection for the other."""
    geglu = kernels.geglu
    for module in (kernels, kernels.activation):  # the second is for packed experts
        patch.setattr(module, "geglu_halves", lambda both: geglu(*mx.split(both, 2, axis=-1)[::-1]))


@pytest.mark.parametrize(
    ("body", "name", "fault"),
    [
        (test_models.test_both_passes_match_transformers, "wide_window", no_v_norm),
        (test_models.test_both_passes_match_transformers, "small_window", gates_for_values),
        (test_models.test_replayed_draws_give_the_same_decisions, "early_stop", nothing_accepted),
        (test_models.test_the_demo_writes_the_same_text_by_replay, "story", gates_for_values),
        (
            test_models.test_the_demo_writes_the_same_text_from_left_to_right,
            "demo_story",
            gates_for_values,
        ),
        (test_models.test_the_shipped_traces_pass_in_every_dtype, "small_window", no_v_norm),
        (test_models.test_quantised_models_match_mlx_vlm, "mxfp4", gates_for_values),
    ],
)
def test_a_model_that_computes_something_else_is_noticed(body, name, fault):
    with pytest.raises(AssertionError):
        body(faulty(fault), name)


@pytest.mark.parametrize("kind", test_experts.KINDS)
def test_rows_behind_two_to_the_fifteen_that_stay_zero_are_noticed(kind):
    """At 40,002 rows, and not below."""

    def install(patch: pytest.MonkeyPatch) -> None:
        for module in (ExpertLinear, QuantizedExpertLinear):
            call = module.__call__

            def cut(self: Any, rows: mx.array, routing: Any, call: Any = call) -> mx.array:
                out = call(self, rows, routing)
                return mx.where(mx.arange(out.shape[0])[:, None] < 1 << 15, out, 0)

            patch.setattr(module, "__call__", cut)

    bits = test_experts.KINDS[kind]
    assert test_experts.error_of(faulty(install), bits, "down", 16_384) < 1e-5
    assert test_experts.error_of(faulty(install), bits, "down", 40_002) > 0.1


def test_a_prompt_that_is_read_in_one_piece_is_noticed(monkeypatch):
    def install(patch: pytest.MonkeyPatch) -> None:
        prefill = DiffusionGemma.prefill

        def whole(self: Any, tokens: mx.array, cache: Any, chunk_size: int = 0) -> mx.array:
            return prefill(self, tokens, cache, tokens.shape[1])

        patch.setattr(DiffusionGemma, "prefill", whole)

    with pytest.raises(AssertionError):
        test_prefill_memory.test_a_long_prompt_takes_what_the_memory_check_says(
            faulty(install), 16_384, monkeypatch
        )
