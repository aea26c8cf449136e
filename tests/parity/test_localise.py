"""A trace from transformers fails every broken model, and names the layer and the operation."""

import mlx.core as mx
import mutants
import pytest
from small_traces import folder_of, ours, shipped

from mlx_diffusiongemma.parity.verdict import judge
from mlx_diffusiongemma.parity.workflow import check
from mlx_diffusiongemma.runtime import load_model

# Each fault is in every layer that can have it: the first is layer 0, which slides.
WHERE = {
    "encoder scalars used in the decoder": ("denoise", 0, "output"),
    "window + 1: everywhere": ("prompt", 0, "attention"),
    "window + 1: prefill": ("prompt", 0, "attention"),
    "window + 1: denoise": ("denoise", 0, "attention"),
    "window - 1: everywhere": ("prompt", 0, "attention"),
    "window - 1: prefill": ("prompt", 0, "attention"),
    "window - 1: denoise": ("denoise", 0, "attention"),
    "no softcap": ("prompt", None, "logits"),
    "no v_norm": ("prompt", 0, "values"),
    "no q_norm": ("prompt", 0, "queries"),
    "per_expert_scale ignored": ("prompt", 0, "router_weights"),
    "top-k weights not renormalised": ("prompt", 0, "router_weights"),
    "router fed the normalised input": ("prompt", 0, "router_scores"),
    "gate and up swapped: experts": ("prompt", 0, "routed"),
    "gate and up swapped: dense": ("prompt", 0, "dense"),
    "gate and up swapped: self-conditioning": ("conditioned", None, "self_conditioning"),
    "rope base of the other layer type": ("prompt", 0, "queries"),
    "soft embedding unscaled": ("conditioned", None, "soft_embedding"),
    "self-conditioning dropped": ("conditioned", None, "self_conditioning"),
    "embedding scale missing": ("prompt", None, "embedding"),
    "positions of the canvas off by one": ("denoise", 0, "queries"),
    "raw logits fed back": ("generation", None, "sampling"),
}
# One tensor of one layer changed a little: parameter -> the operation that shows it first.
PARTS = {
    "input_layernorm": "queries",
    "self_attn.q_proj": "queries",
    "self_attn.q_norm": "queries",
    "self_attn.k_norm": "keys",
    "self_attn.k_proj": "keys",
    "self_attn.v_proj": "values",
    "self_attn.o_proj": "attention",
    "post_attention_layernorm": "residual",
    "router.proj": "router_scores",
    "mlp.gate_proj": "dense",
    "mlp.down_proj": "dense",
    "pre_feedforward_layernorm": "dense",
    "experts.gate_up_proj": "routed",
    "experts.down_proj": "routed",
    "pre_feedforward_layernorm_2": "routed",
    "post_feedforward_layernorm_1": "output",
    "post_feedforward_layernorm_2": "output",
    "post_feedforward_layernorm": "output",
}


def load(name="small_window"):
    return load_model(folder_of(name), dtype="float32")


def fault_of(model, name="small_window"):
    verdict = judge(check(shipped(name), ours(model, name)))
    assert not verdict.passed and verdict.precision == "fp32"
    return verdict.fault


def changed(array):
    """Every value a little different, so that no norm takes it out again."""
    wave = mx.sin(mx.arange(array.size, dtype=mx.float32)).reshape(array.shape)
    return array * (1 + 0.05 * wave)


def test_every_known_fault_has_a_place():
    assert set(WHERE) == set(mutants.MUTANTS)


@pytest.mark.parametrize("name", ["small_window", "wide_window", "demo"])
def test_the_models_themselves_pass_in_float32(name):
    comparison = check(shipped(name), ours(load(name), name))
    verdict = judge(comparison)
    assert (verdict.passed, verdict.precision, verdict.fault) == (True, "fp32", None)
    assert len(comparison.generations) == 1 and comparison.generations[0].same_answer


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_a_mutant_fails_and_the_report_names_the_place(mutant, monkeypatch):
    model = load()
    mutants.MUTANTS[mutant](model, monkeypatch)
    fault = fault_of(model)
    assert (fault.pass_name, fault.layer, fault.operation) == WHERE[mutant]
    assert fault.jumps


@pytest.mark.parametrize("mutant", ["no q_norm", "window - 1: prefill", "raw logits fed back"])
def test_a_mutant_of_the_demo_is_found_too(mutant, monkeypatch):
    model = load("demo")
    mutants.MUTANTS[mutant](model, monkeypatch)
    fault = fault_of(model, "demo")
    assert (fault.pass_name, fault.layer, fault.operation) == WHERE[mutant]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layer", [2, 4])
def test_a_changed_weight_is_found_in_its_layer(part, layer):
    if (part, layer) == ("self_attn.v_proj", 4):
        return  # a full layer has none
    model = load()
    module = model.model.decoder.layers[layer]
    for name in part.split("."):
        module = module[name]
    module.weight = changed(module.weight)
    fault = fault_of(model)
    assert (fault.pass_name, fault.layer, fault.operation) == ("prompt", layer, PARTS[part])


@pytest.mark.parametrize("layer", [1, 3])
def test_scales_and_scalars_are_found_in_their_layer(layer):
    for attribute, operation in (
        ("scale", "router_scores"),
        ("per_expert_scale", "router_weights"),
    ):
        model = load()
        router = model.model.decoder.layers[layer].router
        router[attribute] = changed(router[attribute])
        fault = fault_of(model)
        assert (fault.pass_name, fault.layer, fault.operation) == ("prompt", layer, operation)
    model = load()
    scalars = model.model.encoder.language_model.layers[layer]
    scalars.layer_scalar = scalars.layer_scalar * 1.01
    fault = fault_of(model)
    assert (fault.pass_name, fault.layer, fault.operation) == ("prompt", layer, "output")


def test_the_last_norm_is_found_outside_of_the_layers():
    model = load()
    model.model.decoder.norm.weight = changed(model.model.decoder.norm.weight)
    fault = fault_of(model)
    assert (fault.layer, fault.operation) == (None, "final_norm")


def test_a_cache_that_forgets_is_found_where_it_is_read(monkeypatch):
    """Full layers that lose the oldest token: the prompt is right, the canvas is not."""
    model = load()
    make_cache = type(model).make_cache

    def forgetful(self, *arguments):
        cache = make_cache(self, *arguments)
        cache.layers[1].keep = 18  # of 19
        return cache

    monkeypatch.setattr(type(model), "make_cache", forgetful)
    fault = fault_of(model)
    assert (fault.pass_name, fault.layer, fault.operation) == ("denoise", 1, "attention")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_that_are_not_finite_fail_where_they_arise():
    model = load()
    mlp = model.model.decoder.layers[2].mlp
    mlp.up_proj.weight = mlp.up_proj.weight * mx.inf
    fault = fault_of(model)
    assert (fault.pass_name, fault.layer, fault.operation) == ("prompt", 2, "dense")
