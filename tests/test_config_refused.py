"""config.json: refusals name the value, and say what is allowed."""

import pytest
import tiny

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.released import released_values

RELEASED = released_values()


def with_text(**changes):
    """The released config with some fields of its text changed; ... removes one."""
    text = RELEASED["text_config"] | changes
    return RELEASED | {"text_config": {k: v for k, v in text.items() if v is not ...}}


def refusal(values):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("model_type", ["gemma4", "diffusion_gemma_text", None, ["x"]])
def test_another_model_type_is_refused_by_name(model_type):
    error = refusal(RELEASED | {"model_type": model_type})
    assert repr(model_type) in str(error)
    assert "'diffusion_gemma' only" in error.hint


@pytest.mark.parametrize("text", [None, [], "text"])
def test_a_text_config_is_needed(text):
    assert "text_config" in str(refusal(RELEASED | {"text_config": text}))


SIZES = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "sliding_window",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
]
OPTIONAL_SIZES = ["max_position_embeddings", "head_dim", "num_key_value_heads", "global_head_dim"]


@pytest.mark.parametrize("value", ["64", -1, 0, True, 2.0, [8], 2**31, 10**30], ids=repr)
@pytest.mark.parametrize("name", SIZES + OPTIONAL_SIZES)
def test_a_size_must_be_a_positive_integer(name, value):
    error = refusal(with_text(**{name: value}))
    assert str(error) == f"the checkpoint says {name} {value!r}"
    most = 10_000 if name == "num_hidden_layers" else 2**31 - 1
    assert error.hint == f"{name} must be an integer from 1 to {most}"


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("absent", [..., None])
def test_a_size_without_a_default_must_be_there(name, absent):
    assert str(refusal(with_text(**{name: absent}))) == f"the checkpoint says {name} None"


@pytest.mark.parametrize("value", ["0.1", 0, -1, True, float("nan"), float("inf"), 10**400])
@pytest.mark.parametrize("name", ["rms_norm_eps", "final_logit_softcapping"])
def test_a_number_must_be_positive_and_finite(name, value):
    error = refusal(with_text(**{name: value}))
    assert f"{name} {value!r}" in str(error)
    assert "finite number above 0" in error.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_activation", "silu"),
        ("attention_bias", True),
        ("tie_word_embeddings", False),
        ("use_bidirectional_attention", "all"),
    ],
)
def test_what_the_runtime_does_not_compute_is_refused_with_the_value(name, value):
    for values in (with_text(**{name: value}), RELEASED | {name: value}):
        error = refusal(values)
        assert str(error) == f"the checkpoint says {name} {value!r}"
        assert f"supports {name}" in error.hint


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        (29 * [tiny.SLIDING], "layer_types has 29 entries and num_hidden_layers is 30"),
        ([], "layer_types has 0 entries"),
        (30 * ["linear_attention"], "linear_attention"),
        (30 * [None], "None"),
        ("sliding_attention", "'sliding_attention'"),
        ({"0": tiny.FULL}, "{'0': 'full_attention'}"),
    ],
)
def test_layer_types_must_name_a_known_kind_for_every_layer(types, problem):
    error = refusal(with_text(layer_types=types))
    assert problem in str(error)
    assert error.hint


@pytest.mark.parametrize(
    "own",
    [
        {"30": {"head_dim": 512}},
        {"-1": {"head_dim": 512}},
        {5_000 * "9": {"head_dim": 512}},
        {"full_attention": {"head_dim": 512}},
        {"05": {"intermediate_size": 64}},
        {"05": {"skip": ["mlp"]}},
        {"05": {"head_dim": "512"}},
        {"05": 512},
        [512],
    ],
    ids=lambda own: str(own)[:40],
)
def test_a_per_layer_config_we_cannot_follow_is_refused(own):
    assert refusal(with_text(per_layer_config=own)).hint


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
        {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 1.5},
        {"rope_type": "proportional", "rope_theta": 1e6, "factor": 2.0},
        {"rope_type": "proportional", "rope_theta": -1},
        {"rope_type": "proportional", "rope_theta": "1e6"},
        "proportional",
    ],
    ids=str,
)
def test_another_rope_is_refused(rope):
    error = refusal(with_text(rope_parameters=tiny.ROPE | {tiny.FULL: rope}))
    assert error.hint


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn"},
        {"rope_type": "default", "rope_theta": 1e4},
        tiny.ROPE | {"rope_theta": 1e4},
    ],
    ids=str,
)
def test_a_rope_that_is_not_said_layer_kind_by_layer_kind_is_refused(rope):
    error = refusal(with_text(rope_parameters=rope))
    assert str(error) == f"the checkpoint says rope_parameters {rope!r}"
    assert "'sliding_attention' and 'full_attention'" in error.hint


def test_a_softcap_of_null_is_refused_since_the_reference_divides_by_it():
    error = refusal(with_text(final_logit_softcapping=None))
    assert str(error) == "the checkpoint says final_logit_softcapping null"
    assert "leave it out for 30" in error.hint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"top_k_experts": 129}, "top_k_experts is 129 of num_experts 128"),
        ({"num_attention_heads": 12}, "num_attention_heads 12, num_key_value_heads 8"),
        ({"head_dim": 255}, "head_dim 255"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(changes, problem):
    error = refusal(with_text(**changes))
    assert problem in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"moe_intermediate_size": 2**30}, "2 * moe_intermediate_size = 2147483648"),
        ({"num_attention_heads": 2**23}, "num_attention_heads * head_dim = 2147483648"),
        (
            {"num_key_value_heads": 2**23, "head_dim": 256, "num_attention_heads": 1},
            "num_key_value_heads * head_dim = 2147483648",
        ),
    ],
)
def test_rows_longer_than_an_array_can_have_are_refused(changes, problem):
    error = refusal(with_text(**changes))
    assert str(error) == f"the checkpoint says {problem}"
    assert error.hint == "it must be at most 2147483647"


def test_the_most_layers_are_read_and_one_more_is_refused_before_a_list_is_built():
    assert len(parse_config(with_text(layer_types=..., num_hidden_layers=10_000)).layers) == 10_000
    for count in (10_001, 10**11):
        error = refusal(with_text(layer_types=..., num_hidden_layers=count))
        assert str(error) == f"the checkpoint says num_hidden_layers {count}"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "auto", 16, ["float32"]], ids=str)
def test_a_dtype_the_runtime_does_not_know_is_refused(dtype):
    error = refusal(RELEASED | {"dtype": dtype})
    assert str(error) == f"the checkpoint says dtype {dtype!r}"
    assert "'bfloat16'" in error.hint


@pytest.mark.parametrize("canvas_length", [0, "256", True])
def test_a_canvas_has_a_length(canvas_length):
    assert "canvas_length" in str(refusal(RELEASED | {"canvas_length": canvas_length}))


@pytest.mark.parametrize("token", ["<image>", 1.5, True, [258_880, "x"]], ids=str)
def test_an_image_token_is_an_id(token):
    assert "image_token_id" in str(refusal(RELEASED | {"image_token_id": token}))
