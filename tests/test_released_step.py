"""The benchmark at released dimensions, run with tiny ones; and the weights that it makes."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import released_step
import tiny
from synthetic_packed import random_model

from mlx_diffusiongemma import device
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.recipes import find_recipe

ROOT = Path(__file__).resolve().parents[1]


def test_it_measures_what_it_says(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "benchmarks/released_step.py", "--small", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    assert json.loads(done.stdout) == found
    plan, length = released_step.SMALL_PLAN, released_step.values_of(small=True)["canvas_length"]
    assert [each["tokens"] for each in found["prefill"]] == list(plan.prompt_tokens)
    assert [each["steps"] for each in found["diffusion"]] == list(plan.steps)
    assert found["diffusion"][0]["tokens"] == plan.canvases * length
    assert found["left_to_right"]["tokens"] == plan.tokens
    rates = [*found["prefill"], *found["diffusion"], found["left_to_right"]]
    assert all(each["tokens_per_second"] > 0 for each in rates)
    assert found["pass_seconds"] > 0 and found["step_seconds"] > 0
    assert found["peak_bytes"] > found["model"]["weight_bytes"] > 0
    assert found["model"]["layers"] == 2 and found["device"]["versions"]["mlx"]


def test_the_full_size_is_the_released_one():
    config = parse_config(released_step.values_of(small=False))
    assert (len(config.layers), config.vocab_size, config.canvas_length) == (30, 262_144, 256)
    assert max(released_step.FULL_PLAN.steps) == 48


@pytest.mark.parametrize("name", ["mixed-4-8", "8bit", "bf16"])
def test_random_packed_weights_spread_as_those_of_a_new_network(name):
    config, recipe = parse_config(tiny.config_values()), find_recipe(name)
    model = random_model(config, recipe)
    layer = model.model.decoder.layers[0]
    for path, module in (
        ("model.decoder.layers.0.experts.gate_up_proj", layer.experts.gate_up_proj),
        ("model.decoder.layers.0.mlp.up_proj", layer.mlp.up_proj),
        ("model.decoder.embed_tokens", model.model.decoder.embed_tokens),
    ):
        how = recipe.for_module(path)
        weight = module.weight
        if how is not None:
            assert weight.dtype == mx.uint32
            packing = {"bits": how.bits, "group_size": how.group_size}
            weight = mx.dequantize(weight, module.scales, module.biases, **packing)
            words = np.unique(np.array(module.weight).view(np.uint8), return_counts=True)
            assert len(words[0]) == 256 and words[1].max() < 3 * words[1].min()
        numbers = np.array(weight.astype(mx.float32))
        assert abs(numbers.mean()) < 0.02 * numbers.std() + 2e-4
        assert numbers.std() == pytest.approx(config.hidden_size**-0.5, rel=0.05)


def test_the_weights_take_what_the_memory_check_says():
    config, recipe = parse_config(tiny.config_values(vocab_size=2048)), find_recipe("mixed-4-8")
    before = mx.get_active_memory()
    model = random_model(config, recipe)
    taken = mx.get_active_memory() - before
    assert taken == pytest.approx(device.recipe_bytes(recipe, config, 2), rel=0.05)
    logits = model.denoise(mx.zeros((1, 8), mx.int32), prefilled(model), None)
    assert mx.isfinite(logits).all() and 0.3 < mx.std(logits).item() < 3


def prefilled(model):
    cache = model.make_cache()
    model.prefill(mx.array([[3, 4, 5]], mx.int32), cache)
    return cache


def test_a_packing_without_biases_is_refused():
    with pytest.raises(ValueError, match="is not affine"):
        random_model(parse_config(tiny.config_values()), find_recipe("mxfp4"))
