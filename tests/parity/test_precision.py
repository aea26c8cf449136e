"""Quantised copies of the demo against its float32 trace: they pass, and broken ones do not."""

import mutants
import pytest
from small_traces import shipped

from mlx_diffusiongemma.convert import convert_checkpoint
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.ours import OurModel
from mlx_diffusiongemma.parity.report import same_weights
from mlx_diffusiongemma.parity.verdict import judge
from mlx_diffusiongemma.parity.workflow import check
from mlx_diffusiongemma.runtime import load_model

RECIPES = {"8bit": "8-bit", "mixed-4-8": "4-bit"}


@pytest.fixture(scope="module", params=RECIPES)
def quantised(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised") / request.param
    convert_checkpoint("demo", folder, request.param)
    return request.param, folder


def checked(folder, mutate=lambda model: None, **options):
    model = load_model(folder, **options)
    mutate(model)
    return check(shipped("demo"), OurModel(model, model_facts(folder, str(folder))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_conversion_passes_in_its_class(quantised, dtype):
    recipe, folder = quantised
    comparison = checked(folder, dtype=dtype)
    verdict = judge(comparison)
    assert verdict.precision == RECIPES[recipe]
    assert verdict.passed, verdict
    assert not same_weights(comparison)
    assert not judge(comparison, "fp32").passed


@pytest.mark.parametrize(
    ("mutant", "place"),
    [
        ("no q_norm", (0, "queries")),
        ("no v_norm", (0, "values")),
        ("rope base of the other layer type", (0, "queries")),
        ("gate and up swapped: dense", (0, "dense")),
        ("embedding scale missing", (None, "embedding")),
    ],
)
def test_a_gross_fault_of_a_conversion_is_found_through_its_noise(
    quantised, mutant, place, monkeypatch
):
    _, folder = quantised
    comparison = checked(
        folder, lambda model: mutants.MUTANTS[mutant](model, monkeypatch), dtype="float32"
    )
    verdict = judge(comparison)
    assert not verdict.passed
    assert (verdict.fault.layer, verdict.fault.operation) == place
