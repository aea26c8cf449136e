"""Checkpoints that mlx-vlm quantised, against the logits mlx-vlm computes from them."""

import emulated
import mlx.core as mx
import numpy as np
import our_passes
import pytest
from recordings import FIXTURES, MANIFEST, read_about, read_arrays
from tolerances import QUANTIZED_RELATIVE

from mlx_diffusiongemma.kernels import dispatch, expert_products
from mlx_diffusiongemma.runtime import load_model

RECIPES = sorted(path.name for path in (FIXTURES / "mlx_vlm").iterdir())

each_recipe = pytest.mark.parametrize("recipe", RECIPES)


def test_the_community_formats_are_all_here():
    assert set(RECIPES) == {"affine_4_8", "affine_8", "mxfp4"} == set(MANIFEST["mlx_vlm"]["facts"])


@each_recipe
def test_logits_match_mlx_vlm(recipe):
    assert_as_mlx_vlm(recipe)


def assert_as_mlx_vlm(recipe):
    folder = FIXTURES / "mlx_vlm" / recipe
    recorded = read_arrays(folder / "logits.safetensors")
    assert read_about(folder / "logits.safetensors")["temperature"] == our_passes.TEMPERATURE
    model = load_model(folder, dtype="float32")
    ours = our_passes.run(model, recorded)
    for name in ("prompt/logits", "denoise/logits", "conditioned/logits"):
        error = np.abs(ours[name] - recorded[name]).max() / np.abs(recorded[name]).max()
        assert error < QUANTIZED_RELATIVE, name


@pytest.mark.kernels
@pytest.mark.parametrize(("recipe", "way"), [("affine_4_8", "staged"), ("affine_8", "fragments")])
def test_logits_match_mlx_vlm_with_experts_in_our_kernels(recipe, way, monkeypatch):
    launched = set()

    def run(launch: dispatch.Launch):
        launched.add(launch.kernel.name)
        return emulated.run(launch, "fast")

    monkeypatch.setenv(expert_products.CHOICE, way)
    with dispatch.forced(run):
        assert_as_mlx_vlm(recipe)
    assert {f"gate_up_{way}", f"down_{way}"} <= launched


@each_recipe
def test_quantised_weights_stay_packed(recipe):
    model = load_model(FIXTURES / "mlx_vlm" / recipe, dtype="float32")
    layer = model.model.decoder.layers[0]
    for module in (layer.experts.gate_up_proj, layer.router.proj, model.model.decoder.embed_tokens):
        assert module.weight.dtype == mx.uint32
