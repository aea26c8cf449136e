"""Loading is strict: whatever does not fit is named, and nothing is guessed."""

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma.errors import CheckpointError, ConfigError
from mlx_diffusiongemma.quantization import Quantization

VALUES = tiny.config_values()
VOCABULARY, HIDDEN = VALUES["text_config"]["vocab_size"], VALUES["text_config"]["hidden_size"]
EMBEDDING = "model.decoder.embed_tokens"
EXPERTS = "model.decoder.layers.0.experts.gate_up_proj"


@pytest.fixture(scope="module")
def released():
    """A whole checkpoint's tensors in the released layout."""
    return tiny.random_tensors(VALUES)


@pytest.fixture
def on_cpu():
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


def refusal(folder, values, tensors):
    with pytest.raises(CheckpointError) as caught:
        tiny.load(folder, values, tensors)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.hint
    return message


Q_PROJ = "model.decoder.layers.0.self_attn.q_proj.weight"
WRONG = {
    "missing": ({}, [Q_PROJ], f"missing `{Q_PROJ}`"),
    "unknown": ({"extra": mx.zeros((2,))}, [], "unknown `extra`"),
    "unknown in the decoder": (
        {"model.decoder.layers.3.layer_scalar": mx.zeros((1,))},
        [],
        "unknown `model.decoder.layers.3.layer_scalar`",
    ),
    "shape": ({Q_PROJ: mx.zeros((8, 8))}, [], f"`{Q_PROJ}` has shape [8, 8], not [128, 128]"),
    "scalar without a dimension": (
        {"model.decoder.layers.0.layer_scalar": mx.array(1.0)},
        [],
        "`model.decoder.layers.0.layer_scalar` has shape [], not [1]",
    ),
    "integers": (
        {Q_PROJ: mx.zeros((128, 128), mx.int32)},
        [],
        f"`{Q_PROJ}` has dtype I32, not BF16, F16 or F32",
    ),
    "packed without scales": (
        {Q_PROJ: mx.zeros((128, 128), mx.uint32)},
        [],
        f"`{Q_PROJ}` has dtype U32, not BF16, F16 or F32",
    ),
    "scales of something that is never packed": (
        {"model.decoder.norm.scales": mx.zeros((2,))},
        [],
        "unknown `model.decoder.norm.scales`",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, released, case):
    added, removed, expected = WRONG[case]
    tensors = {name: array for name, array in released.items() if name not in removed} | added
    message = refusal(tmp_path, VALUES, tensors)
    assert expected in message
    assert message.endswith(expected)  # and nothing else is wrong


def test_an_error_lists_five_problems_and_counts_the_rest(tmp_path, released):
    tensors = {name: array for name, array in released.items() if "layers.1." not in name}
    message = refusal(tmp_path, VALUES, tensors)
    missing = len(released) - len(tensors)
    assert message.count("missing `") == 5
    assert message.endswith(f"; and {missing - 5} more")


def test_two_tensors_for_one_parameter_are_refused(tmp_path, released):
    message = refusal(tmp_path, VALUES, released | {f"{EXPERTS}.weight": released[EXPERTS]})
    assert f"`{EXPERTS}` and `{EXPERTS}.weight` both fill" in message


def packed_as(released, how):
    return tiny.pack(released, lambda path: how)[0]


def test_packed_tensors_need_a_quantization_table(tmp_path, released):
    message = refusal(tmp_path, VALUES, packed_as(released, Quantization(4, 64)))
    assert "config.json does not say how these are quantised" in message
    assert message.count("`model.") == 5


def test_a_module_that_the_table_excludes_may_not_be_packed(tmp_path, released):
    how = Quantization(4, 64)
    values = VALUES | {"quantization": tiny.table(how, {EMBEDDING: False})}
    message = refusal(tmp_path, values, packed_as(released, how))
    assert message.endswith(f"quantised: `{EMBEDDING}`")


@pytest.mark.parametrize("how", tiny.FORMATS[5:], ids=str)
@pytest.mark.parametrize("said", tiny.FORMATS[6:], ids=str)
def test_a_table_must_describe_the_packed_tensors(tmp_path, released, said, how):
    packed, _ = tiny.pack(released, lambda path: how if path == EMBEDDING else None)
    values = VALUES | {"quantization": tiny.table(said)}
    if said == how:
        tiny.load(tmp_path, values, packed)
    else:
        message = refusal(tmp_path, values, packed)
        assert f"`{EMBEDDING}` has U32 weight [96, {4 * how.bits}], " in message
        assert message.endswith(f", which is not {said}")


def test_groups_must_fill_the_rows(tmp_path):
    values = tiny.config_values(moe_intermediate_size=96)
    path = "model.decoder.layers.0.experts.down_proj"
    tensors = packed_as(tiny.random_tensors(values), Quantization(4, 32))
    table = tiny.table(Quantization(4, 32), {path: Quantization(4, 64)})
    message = refusal(tmp_path, values | {"quantization": table}, tensors)
    assert message.endswith(f"`{path}` has rows of 96 values, which no groups of 64 fill")


@pytest.mark.parametrize("name", ["biases", "scales"])
def test_a_packed_module_needs_all_its_parts(tmp_path, released, name):
    how = Quantization(4, 64)
    tensors = packed_as(released, how)
    del tensors[f"{EMBEDDING}.{name}"]
    message = refusal(tmp_path, VALUES | {"quantization": tiny.table(how)}, tensors)
    assert f"{EMBEDDING}." in message


def test_packed_weights_are_unsigned(tmp_path, released):
    how = Quantization(4, 64)
    tensors = packed_as(released, how)
    tensors[f"{EMBEDDING}.weight"] = tensors[f"{EMBEDDING}.weight"].view(mx.int32)
    message = refusal(tmp_path, VALUES | {"quantization": tiny.table(how)}, tensors)
    assert message.endswith(f"`{EMBEDDING}.weight` has dtype I32, not U32")


def test_a_repeat_of_another_shape_is_refused(tmp_path, released):
    tensors = {"lm_head.weight": mx.zeros((VOCABULARY + 1, HIDDEN))} | released
    message = refusal(tmp_path, VALUES, tensors)
    assert "`lm_head.weight` has shape [97, 128], but it should repeat" in message


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dense_experts_on_the_cpu_need_float32(tmp_path, released, dtype):
    with pytest.raises(ConfigError, match=f"dtype is '{dtype}'") as caught:
        tiny.load(tmp_path, VALUES, released, dtype=getattr(mx, dtype))
    assert "--dtype float32" in caught.value.hint


@pytest.mark.usefixtures("on_cpu")
def test_one_dense_layer_of_experts_is_enough_to_need_float32(tmp_path, released):
    how = Quantization(4, 64)
    packed, _ = tiny.pack(released, lambda path: None if path == EXPERTS else how)
    with pytest.raises(ConfigError, match="unquantised experts"):
        tiny.load(tmp_path, VALUES | {"quantization": tiny.table(how)}, packed, dtype=mx.float16)
