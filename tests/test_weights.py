"""Loading: packed weights compute what they stand for, and every tensor is used exactly once."""

import logging

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from tolerances import DEQUANTIZED, HALF_PRECISION

from mlx_diffusiongemma import weights
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.quantization import Quantization

VALUES = tiny.config_values()
EMBEDDING = "model.decoder.embed_tokens"
EXPERTS = "model.decoder.layers.0.experts.gate_up_proj"
VOCABULARY, HIDDEN = VALUES["text_config"]["vocab_size"], VALUES["text_config"]["hidden_size"]

each_format = pytest.mark.parametrize(
    "how", tiny.FORMATS, ids=lambda how: f"{how.mode}-{how.bits}-{how.group_size}"
)


@pytest.fixture(scope="module")
def released():
    """A whole checkpoint's tensors in the released layout."""
    return tiny.random_tensors(VALUES)


def passes(model):
    """Hidden states of a prompt longer than the window, and the logits of two denoising steps.

    The second step is conditioned on logits that are the same for every model.
    """
    cache = model.make_cache()
    tokens = mx.arange(0, 84, 7, dtype=mx.int32)[None] % VOCABULARY
    hidden = model.prefill(tokens, cache)
    canvas = mx.arange(0, 88, 11, dtype=mx.int32)[None] % VOCABULARY
    previous = 3 * mx.random.normal((1, 8, VOCABULARY), key=mx.random.key(5))
    first = model.denoise(canvas, cache, None)
    second = model.denoise(canvas, cache, previous)
    assert hidden.shape == (1, 12, HIDDEN)
    assert first.shape == second.shape == (1, 8, VOCABULARY)
    assert first.dtype == second.dtype == mx.float32
    assert hidden.dtype == model.compute_dtype
    return [np.array(array.astype(mx.float32)) for array in (hidden, first, second)]


def assert_same(model, reference, share=DEQUANTIZED):
    for got, expected in zip(passes(model), passes(reference), strict=True):
        assert np.abs(got - expected).max() < share * np.abs(expected).max()


def parameters(model):
    return dict(tree_flatten(model.parameters()))


# Packed weights ---------------------------------------------------------------------------------


@each_format
def test_packed_weights_compute_what_they_stand_for(tmp_path, released, how):
    packed, unpacked = tiny.pack(released, lambda path: how)
    values = VALUES | {"quantization": tiny.table(how)}
    model = tiny.load(tmp_path / "packed", values, packed)
    assert parameters(model)[f"{EXPERTS}.weight"].dtype == mx.uint32
    assert parameters(model)["model.decoder.layers.0.router.proj.weight"].dtype == mx.uint32
    assert parameters(model)["model.decoder.self_conditioning.up_proj.weight"].dtype == mx.uint32
    assert_same(model, tiny.load(tmp_path / "unpacked", VALUES, unpacked))


@each_format
def test_an_embedding_may_be_packed_alone(tmp_path, released, how):
    packed, unpacked = tiny.pack(released, lambda path: how if path == EMBEDDING else None)
    values = VALUES | {"quantization": tiny.table(how)}
    model = tiny.load(tmp_path / "packed", values, packed)
    assert parameters(model)[f"{EMBEDDING}.weight"].dtype == mx.uint32
    assert_same(model, tiny.load(tmp_path / "unpacked", VALUES, unpacked))


@pytest.mark.parametrize(
    "default", [Quantization(4, 32, "mxfp4"), Quantization(4, 64)], ids=["mxfp4", "affine"]
)
def test_overrides_decide_for_their_module(tmp_path, released, default):
    def how_of(path):
        if ".router." in path:
            return None
        return default if ".experts." in path or ".self_cond" in path else Quantization(8, 64)

    packed, unpacked = tiny.pack(released, how_of)
    paths = {name.removesuffix(".weight") for name in released if tiny.is_matrix(name)}
    overrides = {path: how_of(path) or False for path in paths if how_of(path) != default}
    values = VALUES | {"quantization": tiny.table(default, overrides)}
    assert "mode" not in values["quantization"][EMBEDDING]  # affine, whatever the default is
    assert values["quantization"]["model.decoder.layers.0.router.proj"] is False
    model = tiny.load(tmp_path / "packed", values, packed)
    assert_same(model, tiny.load(tmp_path / "unpacked", VALUES, unpacked))


@pytest.mark.parametrize("head", [None, tiny.FORMATS[5], tiny.FORMATS[8]], ids=str)
@pytest.mark.parametrize("embedding", [None, tiny.FORMATS[5], tiny.FORMATS[8]], ids=str)
def test_a_repeated_head_may_be_packed_like_the_embedding_or_not(
    tmp_path, released, embedding, head
):
    tensors = {"lm_head.weight": released[f"{EMBEDDING}.weight"]} | released
    how_of = {EMBEDDING: embedding}.get
    packed, unpacked = tiny.pack(tensors, how_of)
    del unpacked["lm_head.weight"]  # no longer what the unpacked embedding holds
    if head is not None:
        parts = mx.quantize(
            packed.pop("lm_head.weight"), head.group_size, head.bits, mode=head.mode
        )
        packed |= {
            f"lm_head.{leaf}": part
            for leaf, part in zip(("weight", "scales", "biases"), parts, strict=False)
        }
    overrides = {EMBEDDING: embedding or False, "lm_head": head or False}
    values = VALUES | {"quantization": tiny.table(Quantization(4, 64), overrides)}
    model = tiny.load(tmp_path / "packed", values, packed)
    assert_same(model, tiny.load(tmp_path / "unpacked", VALUES, unpacked))


@pytest.mark.parametrize("dtype", HALF_PRECISION)
@pytest.mark.parametrize("how", [tiny.FORMATS[2], tiny.FORMATS[8]], ids=lambda how: how.mode)
def test_packed_weights_compute_in_half_precision(tmp_path, how, dtype):
    values = tiny.config_values(
        num_hidden_layers=2,
        layer_types=[tiny.SLIDING, tiny.FULL],
        top_k_experts=4,  # all: no expert is chosen by rounding
    )
    packed, unpacked = tiny.pack(tiny.random_tensors(values), lambda path: how)
    packed_values = values | {"quantization": tiny.table(how)}
    model = tiny.load(tmp_path / "packed", packed_values, packed, dtype=getattr(mx, dtype))
    floats = [a.dtype for a in parameters(model).values() if mx.issubdtype(a.dtype, mx.floating)]
    assert set(floats) == {getattr(mx, dtype)} == {model.compute_dtype}
    reference = tiny.load(tmp_path / "unpacked", values, unpacked)
    for got, expected in zip(passes(model), passes(reference), strict=True):
        assert np.std(got - expected) < HALF_PRECISION[dtype] * np.std(expected)


@pytest.mark.parametrize("how", tiny.FORMATS[8:], ids=lambda how: how.mode)
def test_float_modes_lose_nothing_as_bfloat16(released, how):
    """MLX's embedding dequantises them to bfloat16 before it is cast to the compute dtype."""
    parts = mx.quantize(released[f"{EMBEDDING}.weight"], how.group_size, how.bits, mode=how.mode)
    arguments = {"group_size": how.group_size, "bits": how.bits, "mode": how.mode}
    as_float = mx.dequantize(*parts, **arguments, dtype=mx.float32)
    assert mx.array_equal(mx.dequantize(*parts, **arguments).astype(mx.float32), as_float)


# Layouts ----------------------------------------------------------------------------------------


def test_a_released_checkpoint_may_be_sharded_and_repeat_tied_tensors(tmp_path, released):
    own = [name for name in released if "language_model" in name or "self_cond" in name]
    repeats = {
        name.replace("model.decoder.", "model.encoder.language_model."): array
        for name, array in released.items()
        if name.startswith("model.decoder.") and name not in own and "layer_scalar" not in name
    }
    repeats["lm_head.weight"] = released[f"{EMBEDDING}.weight"]
    repeats["model.decoder.rotary_emb.inv_freq"] = mx.zeros((4,))
    tensors = list((repeats | released).items())
    shards = dict(tensors[::2]), dict(tensors[1::2])  # a tensor and its repeat lie apart
    once = tiny.load(tmp_path / "once", VALUES, released)
    repeated = tiny.load(tmp_path / "repeated", VALUES, *shards)
    assert len(repeats) > 50
    for name, array in parameters(once).items():
        assert mx.array_equal(array, parameters(repeated)[name]), name


@pytest.mark.parametrize("name", ["lm_head", "model.encoder.language_model.layers.0.mlp.up_proj"])
@pytest.mark.parametrize("how", [None, tiny.FORMATS[5]], ids=str)
def test_a_repeat_that_holds_other_numbers_is_refused(tmp_path, released, name, how):
    original = EMBEDDING if name == "lm_head" else name.replace("encoder.language_model", "decoder")
    repeat = mx.array(released[f"{original}.weight"])
    repeat[-1, -1] += 1
    tensors, _ = tiny.pack(released | {f"{name}.weight": repeat}, {original: how, name: how}.get)
    values = VALUES
    if how is not None:
        overrides = {original: how, name: how}
        values = VALUES | {"quantization": tiny.table(Quantization(4, 64), overrides)}
        parts = mx.quantize(repeat, how.group_size, how.bits, mode=how.mode)
        leaves = ("weight", "scales", "biases")
        tensors |= {f"{name}.{leaf}": a for leaf, a in zip(leaves, parts, strict=False)}
    with pytest.raises(CheckpointError, match="should repeat") as caught:
        tiny.load(tmp_path, values, tensors)
    assert f"`{name}." in str(caught.value) and f"`{original}." in str(caught.value)


def test_a_repeat_of_integers_without_scales_is_refused(tmp_path, released):
    tensors = released | {"lm_head.weight": released[f"{EMBEDDING}.weight"].astype(mx.int32)}
    with pytest.raises(CheckpointError, match="`lm_head.weight` of .* has dtype I32"):
        tiny.load(tmp_path, VALUES, tensors)


def test_every_tensor_of_the_files_is_a_parameter_of_the_model(tmp_path, released):
    model = parameters(tiny.load(tmp_path, VALUES, released))
    text = {name: array for name, array in released.items() if name not in tiny.VISION_TENSORS}
    assert len(model) == len(text)
    for name, array in text.items():
        name = f"{name}.weight" if ".experts." in name else name
        assert mx.array_equal(model[name], array.astype(mx.float32)), name


def test_the_two_layer_scalars_are_told_apart(tmp_path, released):
    values = parameters(tiny.load(tmp_path, VALUES, released))
    ours = values["model.decoder.layers.1.layer_scalar"]
    theirs = values["model.encoder.language_model.layers.1.layer_scalar"]
    assert ours.shape == theirs.shape == (1,)
    assert ours.item() != theirs.item()


def test_vision_tensors_are_left_out_and_the_log_says_so(tmp_path, released, caplog):
    caplog.set_level(logging.INFO)
    tiny.load(tmp_path, VALUES, released)
    assert "left out 2 vision tensors" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("slice_bytes", [1, 10_000, 1 << 30])
def test_the_size_of_a_slice_changes_nothing(tmp_path, released, monkeypatch, slice_bytes):
    expected = parameters(tiny.load(tmp_path, VALUES, released))
    monkeypatch.setattr(weights, "_SLICE_BYTES", slice_bytes)
    for name, array in parameters(tiny.load(tmp_path, VALUES, released)).items():
        assert mx.array_equal(array, expected[name]), name
