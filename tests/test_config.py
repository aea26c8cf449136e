"""config.json and generation_config.json: two spellings, and the reference's defaults."""

import json

import pytest
import tiny

from mlx_diffusiongemma.config import parse_config, read_config, read_generation_config, read_json
from mlx_diffusiongemma.errors import CheckpointError, ConfigError
from mlx_diffusiongemma.released import released_values

RELEASED = released_values()


def with_text(**changes):
    """The released config with some fields of its text changed; ... removes one."""
    text = RELEASED["text_config"] | changes
    return RELEASED | {"text_config": {k: v for k, v in text.items() if v is not ...}}


def saved_by_transformers(digits=2):
    """The released config in the spelling of transformers' `save_pretrained`."""
    own = {"head_dim": 512, "num_key_value_heads": 2}
    return with_text(
        global_head_dim=...,
        num_global_key_value_heads=...,
        per_layer_config={f"{index:0{digits}}": own for index in range(5, 30, 6)},
    )


# What is read -----------------------------------------------------------------------------------


def test_the_released_config_is_read_whole():
    config = parse_config(RELEASED)
    sliding, full = config.layers[0], config.layers[5]
    assert [layer.is_sliding for layer in config.layers] == 5 * [*5 * [True], False]
    assert (sliding.head_dim, sliding.num_key_value_heads, sliding.rotary_pairs) == (256, 8, 128)
    assert (full.head_dim, full.num_key_value_heads, full.rotary_pairs) == (512, 2, 64)
    assert (sliding.rope_theta, full.rope_theta) == (10_000, 1_000_000)
    assert full.shares_key_and_value
    assert not sliding.shares_key_and_value
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (262144, 2816, 2112)
    assert (config.num_experts, config.top_k_experts, config.moe_intermediate_size) == (128, 8, 704)
    assert (config.num_attention_heads, config.sliding_window) == (16, 1024)
    assert (config.canvas_length, config.max_position_embeddings) == (256, 262_144)
    assert (config.rms_norm_eps, config.final_logit_softcapping) == (1e-6, 30.0)
    assert (config.dtype, config.has_vision) == ("bfloat16", True)
    assert config.quantization.default is None


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_both_spellings_say_the_same(digits):
    """transformers fills the layer numbers with zeros, as many as the largest needs."""
    assert parse_config(saved_by_transformers(digits)) == parse_config(RELEASED)


def test_per_layer_config_comes_before_the_released_spelling():
    values = with_text(per_layer_config={"05": {"head_dim": 128}}, num_key_value_heads=4)
    layers = parse_config(values).layers
    assert (layers[5].head_dim, layers[5].num_key_value_heads) == (128, 4)
    assert (layers[11].head_dim, layers[11].num_key_value_heads) == (256, 4)


def test_absent_text_fields_take_the_references_defaults():
    names = [
        "global_head_dim",
        "num_global_key_value_heads",
        "num_key_value_heads",
        "head_dim",
        "layer_types",
        "rope_parameters",
        "rms_norm_eps",
        "max_position_embeddings",
        "use_bidirectional_attention",
        "hidden_activation",
        "attention_bias",
        "tie_word_embeddings",
    ]
    for absent in (..., None):
        values = dict.fromkeys(names, absent) | {"final_logit_softcapping": ...}  # null is refused
        config = parse_config(with_text(**values))
        assert [layer.is_sliding for layer in config.layers] == 5 * [*5 * [True], False]
        sliding, full = config.layers[0], config.layers[5]
        assert (sliding.head_dim, sliding.num_key_value_heads, sliding.rotary_pairs) == (
            256,
            4,
            128,
        )
        assert (full.head_dim, full.num_key_value_heads, full.rotary_pairs) == (512, 4, 64)
        assert (sliding.rope_theta, full.rope_theta) == (10_000, 1_000_000)
        assert (config.rms_norm_eps, config.final_logit_softcapping) == (1e-6, 30.0)
        assert config.max_position_embeddings == 131_072


def test_absent_top_fields_take_the_references_defaults():
    values = {"model_type": "diffusion_gemma", "text_config": RELEASED["text_config"]}
    config = parse_config(values)
    assert (config.canvas_length, config.dtype) == (256, "bfloat16")
    assert config.image_token_ids == {258_880, 255_999, 258_882}
    assert not config.has_vision
    named = values | {"image_token_id": 5, "boi_token_id": 6, "eoi_token_id": 7}
    assert parse_config(named).image_token_ids == {5, 6, 7}


def test_the_last_layer_is_full_whatever_the_config_says():
    values = with_text(num_hidden_layers=3, layer_types=3 * [tiny.SLIDING])
    assert [layer.is_sliding for layer in parse_config(values).layers] == [True, True, False]


def test_the_dtype_may_stand_in_the_text_config():
    values = with_text(dtype="float16") | {"dtype": None}
    assert parse_config(values).dtype == "float16"


def test_a_config_that_is_given_is_not_changed():
    before = json.dumps(RELEASED)
    parse_config(RELEASED)
    assert json.dumps(RELEASED) == before


def test_either_name_of_the_quantization_table_is_read():
    table = {"bits": 4, "group_size": 64}
    for name in ("quantization", "quantization_config"):
        assert parse_config(RELEASED | {name: table}).quantization.default.bits == 4


# Files ------------------------------------------------------------------------------------------


def write(folder, config=RELEASED, **generation_config):
    (folder / "config.json").write_text(json.dumps(config))
    if generation_config:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="config.json` does not exist") as caught:
        read_config(tmp_path)
    assert "checkpoint folder" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not valid JSON: .*line 1 column 2"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[]", "holds a JSON list, not an object"),
        (b"", "is not valid JSON"),
        (100_000 * b"[", "is not valid JSON"),
        (b'{"vocab_size": ' + 5_000 * b"9" + b"}", "is not valid JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_json_is_refused_with_the_file(tmp_path, content, problem):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"config.json` {problem}"):
        read_config(tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path / "config.json")


def test_without_a_generation_config_the_defaults_hold(tmp_path):
    read = read_generation_config(write(tmp_path))
    assert read.sampler.max_denoising_steps == 48
    assert read.eos_token_ids == {1}


def test_the_generation_config_names_the_end_tokens(tmp_path):
    folder = write(tmp_path, eos_token_id=[1, 106, 50], max_denoising_steps=12)
    read = read_generation_config(folder)
    assert read.sampler.max_denoising_steps == 12
    assert read.eos_token_ids == {1, 106, 50}


@pytest.mark.parametrize("missing", [None, []])
def test_end_tokens_are_looked_for_in_the_config_next(tmp_path, missing):
    folder = write(tmp_path, RELEASED | {"eos_token_id": [1, 106]}, eos_token_id=missing)
    assert read_generation_config(folder).eos_token_ids == {1, 106}


def test_one_end_token_needs_no_list(tmp_path):
    assert read_generation_config(write(tmp_path, eos_token_id=106)).eos_token_ids == {106}


def test_a_checkpoint_may_name_no_end_token(tmp_path):
    folder = write(tmp_path, with_text(eos_token_id=...))
    assert read_generation_config(folder).eos_token_ids == frozenset()


@pytest.mark.parametrize("token", ["</s>", [1, None], 1.0, {"id": 1}], ids=str)
def test_an_end_token_is_an_id(tmp_path, token):
    with pytest.raises(ConfigError, match="eos_token_id"):
        read_generation_config(write(tmp_path, eos_token_id=token))
