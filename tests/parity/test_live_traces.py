"""Traces recorded live with transformers, on fresh inputs: ours passes, half precision too."""

from dataclasses import replace

import numpy as np
import pytest
from recordings import FIXTURES
from small_traces import FEW_STEPS, folder_of, ours, shipped, tiny_inputs

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.comparison import compare
from mlx_diffusiongemma.parity.recording import record
from mlx_diffusiongemma.parity.suite import inputs_of
from mlx_diffusiongemma.parity.trace_file import check_arrays, read_trace, write_trace
from mlx_diffusiongemma.parity.verdict import judge
from mlx_diffusiongemma.parity.workflow import check, open_subject, record_like
from mlx_diffusiongemma.runtime import load_model

torch = pytest.importorskip("torch", reason="torch is not installed; `make parity` runs these")

pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # on models this small, threads only wait for each other

OTHER_SEED = 50_000  # away from that of the fixtures


def reference(name, **options):
    folder = folder_of(name)
    given = "demo" if name == "demo" else str(folder)
    return open_subject(folder, given, backend="transformers", device="cpu", **options)


@pytest.mark.parametrize("name", ["small_window", "middle_window", "wide_window"])
def test_a_fresh_trace_passes_in_float32(name, tmp_path):
    inputs = tiny_inputs(name, seed=OTHER_SEED)
    write_trace(tmp_path / "trace", record(reference(name), inputs))
    trace = read_trace(tmp_path / "trace")
    assert trace.manifest.producer.backend == "transformers"
    verdict = judge(check(trace, ours(load_model(folder_of(name), dtype="float32"), name)))
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", ["small_window", "demo"])
def test_the_shipped_traces_are_what_transformers_still_computes(name):
    trace = shipped(name)
    comparison = compare(trace, record_like(trace, reference(name)))
    assert judge(comparison).passed
    assert max(each.relative for each in comparison.operations) < 1e-5


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16")])
@pytest.mark.parametrize("name", ["small_window", "demo"])
def test_two_precisions_of_the_reference_are_compared(name, dtype, precision):
    trace = shipped(name)
    verdict = judge(compare(trace, record_like(trace, reference(name, dtype=dtype))))
    assert (verdict.passed, verdict.precision) == (True, precision), verdict
    assert not judge(
        compare(trace, record_like(trace, reference(name, dtype=dtype))), "fp32"
    ).passed


def test_the_reference_replays_draws_and_goes_on_where_they_end():
    inputs = tiny_inputs("small_window", seed=OTHER_SEED)
    inputs = replace(inputs, cases=())
    first = record(reference("small_window"), inputs)
    longer = [
        replace(case, settings=replace(FEW_STEPS, max_denoising_steps=6))
        for case in first.manifest.generations
    ]
    again = record(reference("small_window"), replace(inputs_of(first), generations=tuple(longer)))
    check_arrays(again, "it")
    start = "generations/story/candidates"
    assert again.manifest.generations[0].steps == 18 and first.manifest.generations[0].steps == 12
    for canvas in range(3):
        mine, theirs = (t.arrays[start] for t in (first, again))
        assert np.array_equal(
            mine[4 * canvas : 4 * canvas + 4], theirs[6 * canvas : 6 * canvas + 4]
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said():
    with pytest.raises(ConfigError, match="torch finds none"):
        open_subject(folder_of("demo"), "demo", backend="transformers", device="cuda")


def test_a_quantised_checkpoint_is_none_for_the_reference():
    folder = FIXTURES / "mlx_vlm" / "affine_8"
    with pytest.raises(ConfigError, match="does not read MLX's quantised"):
        open_subject(folder, str(folder), backend="transformers", device="cpu")
