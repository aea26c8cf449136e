"""Comparing two traces: hand-made numbers in, errors, shares and first differences out."""

from dataclasses import replace

import numpy as np
import pytest
from small_traces import folder_of, ours, shipped, tiny_inputs

from mlx_diffusiongemma.errors import ConfigError, TraceError
from mlx_diffusiongemma.parity.comparison import compare, divergence
from mlx_diffusiongemma.parity.recording import record
from mlx_diffusiongemma.parity.report import as_fields, as_lines, generation_line
from mlx_diffusiongemma.parity.trace import Trace
from mlx_diffusiongemma.parity.verdict import judge, precision_of
from mlx_diffusiongemma.parity.workflow import record_like
from mlx_diffusiongemma.runtime import load_model


@pytest.fixture(scope="module")
def trace():
    return shipped("small_window")


def with_arrays(trace, **changes):
    """The trace with some arrays changed, each named with __ for /."""
    arrays = dict(trace.arrays)
    for name, change in changes.items():
        key = name.replace("__", "/")
        arrays[key] = change(arrays[key].copy())
    return Trace(trace.manifest, arrays)


def found(comparison, pass_name, layer, operation):
    (each,) = [
        each
        for each in comparison.operations
        if (each.pass_name, each.layer, each.operation) == (pass_name, layer, operation)
    ]
    return each


def test_a_trace_equals_itself(trace):
    comparison = compare(trace, trace)
    assert not any(each.relative for each in comparison.operations)
    assert not any(max(each.kl) for each in comparison.logits)
    assert [each.first for each in comparison.generations] == [None]
    assert judge(comparison).passed


def test_the_errors_of_one_row_by_hand(trace):
    def moved(values):
        values[0] = values[0] + 2.0
        return values

    name = "passes/long/block/layers/1/dense"
    comparison = compare(trace, with_arrays(trace, **{name.replace("/", "__"): moved}))
    each = found(comparison, "block", 1, "dense")
    want = trace.arrays[name].astype(np.float64)
    assert each.max_error == pytest.approx(2.0, rel=1e-6)
    assert each.rms_error == pytest.approx(2.0 / np.sqrt(len(want)), rel=1e-6)
    assert each.relative == pytest.approx(each.rms_error / np.sqrt((want**2).mean()), rel=1e-6)
    assert each.typical == 0  # one of four rows is not the middle
    assert sum(other.relative > 0 for other in comparison.operations) == 1


def test_other_experts_count_for_their_tokens_and_their_weights(trace):
    def other_expert(experts):
        free = min(set(range(8)) - set(experts[1].tolist()))
        experts[1] = np.sort([free, experts[1][0]])
        return experts

    other = with_arrays(trace, passes__long__denoise__layers__2__experts=other_expert)
    comparison = compare(trace, other)
    assert found(comparison, "denoise", 2, "experts").relative == 0.25  # one of four rows
    assert found(comparison, "denoise", 2, "router_weights").relative > 0.1


def test_divergence_by_hand():
    want, got = np.log([[0.5, 0.25]]), np.log([[0.25, 0.25]])
    by_hand = 0.5 * np.log(0.5 / 0.25) + 0.25 * np.log(0.25 / 0.5)  # the rest is 0.25 and 0.5
    assert divergence(want, got, rest=True) == pytest.approx([by_hand])
    whole = np.log([[0.75, 0.25]]), np.log([[0.25, 0.75]])
    assert divergence(*whole, rest=False) == pytest.approx([0.5 * np.log(3)])
    assert divergence(*[whole[0]] * 2, rest=False).tolist() == [0]
    assert divergence(want, np.array([[np.nan, 0.0]]), rest=True).tolist() == [np.inf]


def test_the_first_step_that_differs_is_named(trace):
    def flipped(array):
        array[10, 3] = not array[10, 3]  # 8 steps a canvas: canvas 1, step 2
        return array

    comparison = compare(trace, with_arrays(trace, generations__story__accepted=flipped))
    (each,) = comparison.generations
    assert each.first == (1, 2)
    assert [step.accepted for step in each.agreement[9:12]] == [1, 11 / 12, 1]
    assert "first differs in canvas 2, step 3; the same answer" in generation_line(each)
    fault = judge(comparison).fault
    assert (fault.pass_name, fault.operation, fault.case) == ("generation", "sampling", "story")


def test_a_canvas_that_takes_another_number_of_steps_differs_there(trace):
    """The reference stopped after two steps of its first canvas; the other one went on."""
    arrays = dict(trace.arrays)
    start = "generations/story"
    for name in ("candidates", "renoise", "argmax", "accepted", "entropy"):
        rows = arrays[f"{start}/{name}"]
        arrays[f"{start}/{name}"] = np.concatenate([rows[:2], rows[8:]])
    arrays[f"{start}/steps"] = np.array([2, 8, 8], np.int32)
    (each,) = compare(Trace(trace.manifest, arrays), trace).generations
    assert (each.steps, each.other_steps) == ((2, 8, 8), (8, 8, 8))
    assert each.first == (0, 2)
    assert len(each.agreement) == 18  # canvases are compared in their own places
    assert all(step.argmax == step.accepted == 1 for step in each.agreement)


def test_other_inputs_are_refused(trace):
    own = record(
        ours(load_model(folder_of("small_window")), "small_window"),
        tiny_inputs("small_window", seed=3),
    )
    with pytest.raises(TraceError, match="other inputs") as raised:
        compare(trace, own)
    assert "--like" in raised.value.hint


def test_another_model_is_refused_before_it_runs(trace):
    with pytest.raises(TraceError, match="another model: here vocab_size is 257, not 321"):
        record_like(trace, ours(load_model(folder_of("wide_window")), "wide_window"))


def test_a_side_is_judged_by_its_coarser_half(trace):
    comparison = compare(trace, trace)
    for own, expected in (("bf16", "bf16"), ("4-bit", "4-bit"), ("fp32", "fp32")):
        producer = replace(trace.manifest.producer, precision=own)
        other = replace(comparison, other=replace(trace.manifest, producer=producer))
        assert precision_of(other) == expected
    assert precision_of(comparison, "8-bit") == "8-bit"
    with pytest.raises(ConfigError, match="precision is 'int3'"):
        judge(comparison, "int3")


def test_the_report_says_the_same_in_json_and_in_lines(trace):
    def broken(values):
        values[:] = np.inf
        return values

    other = with_arrays(trace, passes__long__prompt__layers__3__routed=broken)
    comparison = compare(trace, other)
    verdict = judge(comparison)
    fields, lines = as_fields(comparison, verdict), list(as_lines(comparison, verdict))
    assert fields["passed"] is False
    assert (fields["fault"]["layer"], fields["fault"]["operation"]) == (3, "routed")
    assert fields["fault"]["error"] is None  # not a number that JSON has
    assert len(fields["operations"]) == len(comparison.operations)
    assert lines[-1] == "FAIL as fp32"
    assert lines[-2].startswith("first fault: layer 3, routed (prompt of long): error jumps from ")
    assert max(map(len, lines)) < 100
    assert {"passed", "precision", "checks", "fault"} <= fields.keys()


def test_an_error_that_was_there_before_grows_and_does_not_jump(trace):
    def scaled(by):
        return lambda values: values * np.float32(1 + by)

    small = {"passes__long__prompt__layers__1__dense": scaled(4e-5)}
    grown = small | {"passes__long__prompt__layers__1__output": scaled(1.6e-4)}
    assert judge(compare(trace, with_arrays(trace, **small))).passed
    fault = judge(compare(trace, with_arrays(trace, **grown))).fault
    assert (fault.layer, fault.operation, fault.jumps) == (1, "output", False)
    assert "error grows from 4.0e-05 to 1.6e-04" in str(fault)
