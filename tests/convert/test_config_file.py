"""config.json of a converted checkpoint: both spellings, and a table that all readers agree on."""

import json

import pytest
import tiny

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.convert.config_file import output_config
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES, with_changes

FOUR, EIGHT = Quantization(4, 64), Quantization(8, 64)
MXFP4 = Quantization(4, 32, "mxfp4")


def convert(values, *, packed=None, dtype="bfloat16", keep_vision=True):
    """The config.json that is written for the source's."""
    return output_config(
        values,
        parse_config(values),
        dtype=dtype,
        packed=packed or {},
        keep_vision=keep_vision,
    )


def saved_values():
    """The tiny model in the spelling that transformers saves."""
    values = tiny.config_values()
    text = values["text_config"]
    sizes = {
        "head_dim": text.pop("global_head_dim"),
        "num_key_value_heads": text.pop("num_global_key_value_heads"),
    }
    text["per_layer_config"] = {"02": sizes}
    return values


@pytest.mark.parametrize("values", [tiny.config_values(), saved_values()])
def test_either_spelling_becomes_both(values):
    text = convert(values)["text_config"]
    assert (text["global_head_dim"], text["num_global_key_value_heads"]) == (64, 1)
    assert text["per_layer_config"] == {"2": {"head_dim": 64, "num_key_value_heads": 1}}
    assert (text["head_dim"], text["num_key_value_heads"]) == (32, 2)


@pytest.mark.parametrize("values", [tiny.config_values(), saved_values()])
@pytest.mark.parametrize("left_out", ["per_layer_config", "global"])
def test_each_spelling_alone_says_the_same(values, left_out):
    written = convert(values)
    text = written["text_config"]
    for name in list(text):
        if left_out in name:
            del text[name]
    assert parse_config(written).layers == parse_config(values).layers


def test_layers_that_the_released_spelling_cannot_say_have_the_other_only():
    values = saved_values()
    values["text_config"]["per_layer_config"]["1"] = {"num_key_value_heads": 4}
    written = convert(values)
    assert "global_head_dim" not in written["text_config"]
    assert parse_config(written).layers == parse_config(values).layers


def test_what_runtimes_would_fill_in_differently_is_spelled_out():
    values = tiny.config_values(layer_types=None, num_hidden_layers=7, num_key_value_heads=None)
    for name in ("rms_norm_eps", "final_logit_softcapping"):
        del values["text_config"][name]
    del values["canvas_length"]
    written = convert(values)
    text = written["text_config"]
    kinds = [*5 * [tiny.SLIDING], tiny.FULL, tiny.FULL]
    assert text["layer_types"] == kinds
    assert (text["num_key_value_heads"], text["rms_norm_eps"]) == (4, 1e-6)
    assert (text["final_logit_softcapping"], written["canvas_length"]) == (30.0, 256)


def test_the_rest_is_kept_and_the_dtype_is_what_was_written():
    values = tiny.config_values(dtype="float32") | {
        "torch_dtype": "float32",
        "quantization": {"bits": 4, "group_size": 64},
        "quantization_config": {"bits": 4, "group_size": 64},
        "of_somebody_else": [1, {"a": None}],
    }
    written = convert(values, dtype="float16")
    assert written["of_somebody_else"] == [1, {"a": None}]
    assert (written["dtype"], written["text_config"]["dtype"]) == ("float16", "float16")
    assert not {"torch_dtype", "quantization", "quantization_config"} & set(written)
    assert values["quantization"] and values["text_config"]["dtype"] == "float32"
    assert convert(values, keep_vision=False)["vision_config"] is None


def test_the_table_has_the_most_bytes_as_its_default_and_a_mode_everywhere():
    packed = {
        "model.decoder.embed_tokens": (EIGHT, 300),
        "experts.a": (MXFP4, 200),
        "experts.b": (MXFP4, 200),
    }
    written = convert(tiny.config_values(), packed=packed)
    table = written["quantization"]
    assert table == {
        "group_size": 32,
        "bits": 4,
        "mode": "mxfp4",
        "model.decoder.embed_tokens": {"group_size": 64, "bits": 8, "mode": "affine"},
    }
    assert written["quantization_config"] == table


@pytest.mark.parametrize("name", RECIPES)
def test_reading_the_table_gives_what_was_written(write, tensors, name):
    recipe = with_changes(RECIPES[name], overrides=(("*.layers.1.mlp.up_proj", MXFP4),))
    found = plan(write(tensors), recipe)
    read = parse_config(json.loads(json.dumps(found.config))).quantization
    packed = [tensor for tensor in found.tensors if tensor.quantization]
    assert packed
    for tensor in packed:
        assert read.for_module(tensor.parameter.removesuffix(".weight")) == tensor.quantization
