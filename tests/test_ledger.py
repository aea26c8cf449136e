"""The ledger: what is counted as a launch, and the budgets of a step that are reached."""

import json
import math
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma.bench import graph, ledger
from mlx_diffusiongemma.bench.ledger import FULL, SLIDING

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "benchmarks" / "ledger_mlx_vlm_0.7.10.json"
LAUNCHES_OF_A_LAYER = 26
MEGABYTES_OF_A_LAYER = 75
LAUNCHES_OUTSIDE = 20
SHARE_OF_PEER = 0.55


def counted(function, *arrays, large=math.inf):
    return graph.count(graph.trace(function, arrays), large)


def x(*shape):
    return mx.zeros(shape)


# What is a launch -----------------------------------------------------------------------------


def test_views_launch_nothing():
    def views(a):
        b = a[:, 1:3].swapaxes(0, 1)[None].squeeze(0)
        return mx.broadcast_to(b, (5, *b.shape)), *mx.split(a.reshape(2, 12), 3, axis=-1)

    assert not counted(views, x(4, 6)).launches


def test_a_reshape_that_no_view_can_express_is_a_copy():
    count = counted(lambda a: a.swapaxes(0, 1).reshape(-1), x(4, 6))
    assert count.launches == Counter({"copy for a reshape": 1})
    assert count.nbytes.total() == 4 * 6 * 4


@pytest.mark.parametrize("seed", range(200))
def test_views_are_told_from_copies_as_numpy_does(seed):
    random = np.random.default_rng(seed)
    array = np.zeros(random.choice([1, 2, 3, 4, 6], size=3))
    view = array.transpose(random.permutation(3))[:, :: random.integers(1, 3)]
    factors = [n for n in range(1, view.size + 1) if view.size % n == 0]
    first = int(random.choice(factors))
    second = int(random.choice([n for n in factors if view.size // first % n == 0]))
    to = (first, second, view.size // first // second)
    steps = tuple(stride // array.itemsize for stride in view.strides)
    found = graph.reshaped(view.shape, steps, to)
    assert (found is not None) == np.shares_memory(view.reshape(to), array)
    if found is not None:
        real = [stride // array.itemsize for stride in view.reshape(to).strides]
        assert [a for a, n in zip(found, to, strict=True) if n > 1] == [
            a for a, n in zip(real, to, strict=True) if n > 1
        ]


def test_norms_and_rotations_are_one_launch_each():
    def both(a):
        rotated = mx.fast.rope(a, 8, traditional=False, base=1e4, scale=1.0, offset=3)
        return mx.fast.rms_norm(rotated, mx.ones(8), 1e-6)

    whole = mx.fast.rms_norm
    launches = counted(both, x(1, 2, 3, 8)).launches
    assert (launches["rope"], launches["rms_norm"]) == (1, 1)
    assert launches.total() == 3  # and the ones
    assert mx.fast.rms_norm is whole, "counting leaves MLX as it was"


def test_a_kernel_is_one_launch_and_strided_inputs_are_copied_for_it():
    kernel = mx.fast.metal_kernel(
        name="taken", input_names=["a", "b"], output_names=["out", "more"], source=""
    )

    def launch(a):
        return kernel(
            inputs=[a, a.swapaxes(0, 1)],
            template=[("T", mx.float32)],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(4,), (2, 2)],
            output_dtypes=[mx.float32, mx.bfloat16],
        )

    count = counted(launch, x(3, 5))
    assert count.launches == Counter({"taken": 1, "copy of a kernel's input": 1})
    assert count.nbytes == Counter({"taken": 4 * 4 + 4 * 2, "copy of a kernel's input": 60})


def test_a_slice_update_writes_its_update_alone():
    def update(a, new):
        a[:, 2:4] = new
        return a

    assert counted(update, x(8, 100), x(8, 2)).nbytes == Counter({"SliceUpdate": 64})


def test_large_arrays_are_those_of_so_many_elements():
    count = counted(lambda a: (a * 2, mx.exp(a).sum(axis=-1)), x(3, 5), large=15)
    assert count.large.total() == 2


def test_nothing_is_evaluated():
    def evaluating(a):
        b = a * 2
        mx.eval(b)  # would be an error in a trace
        mx.async_eval(b)
        return b

    assert counted(evaluating, x(3)).launches == Counter({"Multiply": 1})


# The step -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    return ledger.count_ours()


def test_layers_and_the_rest_are_the_whole_step(ours):
    for part in ("launches", "nbytes", "large", "hidden"):
        rest, layers = getattr(ours.outside, part), [ours.layers[k] for k in (SLIDING, FULL)]
        sliding, full = (getattr(layer, part) for layer in layers)
        for kind, number in getattr(ours.step, part).items():
            assert number == rest[kind] + 25 * sliding[kind] + 5 * full[kind], kind


def test_the_kernels_are_in_the_step(ours):
    layer = {"prepare_heads", "add_attention", "route", "geglu", "add_feed_forward"}
    assert layer <= set(ours.layers[SLIDING].launches)
    begin = {"probabilities", "soft_norm", "condition"}
    assert begin <= set(ours.model.launches)
    sampler = {"logit_statistics", "draw_tokens", "noise_tokens", "accept_within_bound", "renew"}
    assert set(ours.sampler.launches) == sampler


def test_the_experts_are_the_stock_ones(ours):
    assert ours.layers[SLIDING].launches["GatherQMM"] == 2


def test_a_layer_writes_no_more_than_its_budget_on_average(ours):
    """Of a full layer alone it is open: see docs/performance.md."""
    sliding, full = (ours.layers[kind].nbytes.total() / 1e6 for kind in (SLIDING, FULL))
    assert sliding <= MEGABYTES_OF_A_LAYER
    assert (25 * sliding + 5 * full) / 30 <= MEGABYTES_OF_A_LAYER


@pytest.mark.parametrize("kind", [SLIDING, FULL])
def test_a_layer_launches_no_more_than_its_budget(ours, kind):
    assert ours.layers[kind].launches.total() <= LAUNCHES_OF_A_LAYER


def test_outside_of_the_layers_little_is_launched(ours):
    assert ours.outside.launches.total() <= LAUNCHES_OUTSIDE


def test_one_array_is_as_large_as_a_canvas_times_the_vocabulary(ours):
    assert ours.step.large == Counter({"QuantizedMatmul": 1})  # the head's


def test_fast_self_conditioning_writes_no_probabilities_and_launches_no_more(ours):
    fast = ledger.count_ours(missed=0)
    assert {"survivors", "sum_packed_survivors"} <= set(fast.sampler.launches)
    assert "probabilities" not in fast.model.launches
    assert fast.outside.launches.total() < ours.outside.launches.total()
    # The probabilities of a canvas, in two bytes each; what takes their place is a twentieth.
    saved = ours.outside.nbytes.total() - fast.outside.nbytes.total()
    assert saved > 0.95 * 256 * 262_144 * 2
    assert fast.step.large == ours.step.large
    assert fast.layers == ours.layers


def test_positions_from_all_tokens_are_an_eighth_of_a_canvas_or_all_of_it(ours):
    whole = ours.model.nbytes["probabilities"]
    for missed, share in (1, 1 / 8), (32, 1 / 8), (33, 1), (256, 1):
        count = ledger.count_ours(missed=missed)
        assert count.model.nbytes["probabilities"] == share * whole, missed
        assert count.step.large == ours.step.large


def test_the_network_joins_selects_and_sorts_nothing(ours):
    kinds = {kind for part in (*ours.layers.values(), ours.model) for kind in part.launches}
    assert not kinds & {"Concatenate", "Select", "ArgSort", "ArgPartition", "Sort"}


def test_a_step_launches_little_beside_mlx_vlms(ours):
    peer = json.loads(PEER.read_text())["mlx-vlm, sampler: entropy-bound"]
    assert ours.step.launches.total() <= SHARE_OF_PEER * peer["step"]["launches"]


def test_the_report_adds_up_and_becomes_a_table(ours):
    report = ledger.report(ours)
    step = report["step"]
    assert sum(n for n, _ in step["kinds"].values()) == step["launches"]
    assert sum(nbytes for _, nbytes in step["kinds"].values()) / 1e6 == step["megabytes"]
    head, program, *lines = ledger.table({"this": report})
    assert (program, len(lines)) == ("this", len(report))
    assert str(step["launches"]) in lines[-1]
