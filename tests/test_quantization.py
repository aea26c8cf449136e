"""The `quantization` table of config.json: what it says of each module."""

import mlx.core as mx
import pytest

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.quantization import Quantization, QuantizationTable

EXPERTS, EMBEDDING = "model.decoder.layers.0.experts.down_proj", "model.decoder.embed_tokens"


def table(**values):
    return QuantizationTable.from_config(values)


def test_the_default_covers_every_module():
    read = table(bits=4, group_size=64)
    assert read.for_module(EXPERTS) == Quantization(4, 64, "affine")


def test_the_default_may_have_a_mode():
    read = table(bits=8, group_size=32, mode="mxfp8")
    assert read.for_module(EXPERTS) == Quantization(8, 32, "mxfp8")


def test_an_override_without_a_mode_is_affine_whatever_the_default():
    values = {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    read = table(**values, **{EMBEDDING: {"bits": 8, "group_size": 64}})
    assert read.for_module(EMBEDDING) == Quantization(8, 64, "affine")
    assert read.for_module(EXPERTS) == Quantization(4, 32, "mxfp4")


def test_an_override_may_have_a_mode():
    override = {"bits": 4, "group_size": 16, "mode": "nvfp4"}
    read = table(bits=8, group_size=64, **{EXPERTS: override})
    assert read.for_module(EXPERTS) == Quantization(4, 16, "nvfp4")


def test_an_override_may_be_a_yes_or_a_no():
    read = table(bits=4, group_size=64, **{EMBEDDING: False, EXPERTS: True})
    assert read.for_module(EMBEDDING) is None
    assert read.for_module(EXPERTS) == Quantization(4, 64)


@pytest.mark.parametrize("values", [None, {}])
def test_no_table_means_nothing_is_quantised(values):
    assert QuantizationTable.from_config(values).for_module(EXPERTS) is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"bits": 4}, "None"),
        ([4, 64], "[4, 64]"),
        ("4bit", "'4bit'"),
    ],
)
def test_a_table_of_another_kind_is_refused_by_name(values, named):
    with pytest.raises(ConfigError, match="asks for the quantisation method") as caught:
        QuantizationTable.from_config(values)
    assert named in str(caught.value)
    assert "MLX" in caught.value.hint


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"bits": 7, "group_size": 64}, "affine quantization has bits 7, group_size 64"),
        ({"bits": 4, "group_size": 48}, "bits 4, group_size 48"),
        ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, "mxfp4 quantization has bits 8"),
        ({"bits": 4, "group_size": 32, "mode": "nvfp4"}, "nvfp4 .* group_size 32"),
        ({"bits": 4, "group_size": 64, "mode": "gptq"}, "quantization mode is 'gptq'"),
        ({"bits": 4, "group_size": 64, "mode": ["affine"]}, "quantization mode is"),
        ({"bits": "4", "group_size": 64}, "has bits '4'"),
        ({"bits": 4.0, "group_size": 64}, "has bits 4.0"),
        ({"bits": True, "group_size": 64}, "has bits True"),
        ({"bits": 4, "group_size": None}, "has group_size None"),
        ({"bits": 4}, "has group_size None"),
    ],
)
def test_a_bad_entry_is_refused_with_its_value_and_what_is_allowed(entry, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        table(bits=4, group_size=64, **{EMBEDDING: entry})
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_every_quantization_that_is_allowed_exists_in_mlx(mode):
    weight, count = mx.ones((2, 128)), 0
    for bits in range(1, 10):
        for group_size in (16, 32, 64, 128):
            try:
                how = Quantization(bits, group_size, mode)
            except ConfigError:
                continue
            packed = mx.quantize(weight, group_size, bits, mode=mode)
            assert how.has_biases == (len(packed) == 3)
            count += 1
    assert count == (18 if mode == "affine" else 1)


def test_bits_per_weight_include_scales_and_biases():
    assert Quantization(4, 64).bits_per_weight == 4.5
    assert Quantization(3, 32).bits_per_weight == 4
    assert Quantization(4, 32, "mxfp4").bits_per_weight == 4.25
    assert Quantization(4, 16, "nvfp4").bits_per_weight == 4.5
