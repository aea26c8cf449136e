"""The files of a checkpoint by their headers: what is whole, and what each tensor is for."""

import json

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma.checkpoint import INDEX, TensorInfo, plan_tensors, read_tensors
from mlx_diffusiongemma.errors import CheckpointError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EMBEDDING = "model.decoder.embed_tokens"
LAYER = "model.decoder.layers.0"
COPY = "model.encoder.language_model.layers.0"


@pytest.fixture
def sharded(tmp_path):
    """Two shards with an index."""
    return tiny.write_checkpoint(
        tmp_path, {}, {"a": mx.zeros((2, 3), mx.bfloat16)}, {"b": mx.zeros((4,), mx.uint32)}
    )


def rewrite_index(folder, change):
    values = json.loads((folder / INDEX).read_text())
    change(values)
    (folder / INDEX).write_text(json.dumps(values))


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        read_tensors(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


# Headers ----------------------------------------------------------------------------------------


def test_headers_tell_shape_dtype_and_file(sharded):
    tensors = read_tensors(sharded)
    assert tensors == {
        "a": TensorInfo("a", sharded / ONE, (2, 3), "BF16"),
        "b": TensorInfo("b", sharded / TWO, (4,), "U32"),
    }


def test_without_an_index_every_safetensors_file_is_read(sharded):
    (sharded / INDEX).unlink()
    assert set(read_tensors(sharded)) == {"a", "b"}


def test_with_an_index_only_its_files_are_read(sharded):
    mx.save_safetensors(str(sharded / "adapters.safetensors"), {"lora": mx.zeros((2,))})
    (sharded / "consolidated.safetensors").write_bytes(b"not one at all")
    assert set(read_tensors(sharded)) == {"a", "b"}


@pytest.mark.parametrize(
    ("dtype", "nbytes"),
    [("BF16", 12), ("F32", 24), ("F64", 48), ("U8", 6), ("BOOL", 6), ("F8_E4M3", 6), ("F4", 3)],
)
def test_bytes_follow_the_dtype(tmp_path, dtype, nbytes):
    info = TensorInfo("a", tmp_path, (2, 3), dtype)
    assert (info.size, info.nbytes) == (6, nbytes)


def test_only_floats_change_size_when_they_are_loaded(tmp_path):
    assert TensorInfo("a", tmp_path, (2, 3), "BF16").memory_bytes(4) == 24
    assert TensorInfo("a", tmp_path, (2, 3), "F32").memory_bytes(2) == 12
    assert TensorInfo("a", tmp_path, (2, 3), "U32").memory_bytes(2) == 24
    assert TensorInfo("a", tmp_path, (2, 3), "U8").memory_bytes(4) == 6


# Damaged checkpoints ----------------------------------------------------------------------------


def test_a_folder_without_tensors_is_refused(tmp_path):
    assert "holds no *.safetensors file" in str(refusal(tmp_path))


def test_a_missing_shard_is_named(sharded):
    (sharded / TWO).unlink()
    error = refusal(sharded)
    assert f"{TWO}` does not exist" in str(error)
    assert "incomplete" in error.hint


@pytest.mark.parametrize("left", [0, 7, 40, -1])
def test_a_shard_that_is_cut_short_is_named(sharded, left):
    content = (sharded / TWO).read_bytes()
    (sharded / TWO).write_bytes(content[:left])
    error = refusal(sharded)
    assert f"{TWO}` is damaged or cut short" in str(error)
    assert error.hint == "fetch this file again"


def with_header(path, entries, size=8):
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.mark.parametrize(
    "header",
    [
        b"nonsense",
        {"b": {"dtype": "Q4_K", "shape": [2], "data_offsets": [0, 8]}},
        {"b": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    ],
    ids=["no JSON", "unknown dtype", "wrong shape", "wrong offsets"],
)
def test_a_wrong_header_is_refused(sharded, header):
    with_header(sharded / TWO, header)
    assert f"{TWO}` is damaged" in str(refusal(sharded))


def test_a_git_lfs_pointer_is_recognised(sharded):
    (sharded / TWO).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in refusal(sharded).hint


def test_a_folder_with_the_name_of_a_file_is_refused(sharded):
    (sharded / TWO).unlink()
    (sharded / TWO).mkdir()
    with pytest.raises(CheckpointError, match=f"{TWO}` cannot be read"):
        read_tensors(sharded)


def test_an_index_beside_a_whole_model_is_refused(sharded):
    """Saved again as one file, into the folder of the shards: transformers would read that file."""
    mx.save_safetensors(str(sharded / "model.safetensors"), {"a": mx.zeros(2), "b": mx.zeros(2)})
    assert "holds model.safetensors, and model.safetensors.index.json names" in str(
        refusal(sharded)
    )


def test_an_index_may_not_name_tensors_that_no_shard_holds(sharded):
    rewrite_index(sharded, lambda index: index["weight_map"].update({"c": ONE, "d": TWO}))
    assert "names 2 tensors that no shard holds, first `c`" in str(refusal(sharded))


@pytest.mark.parametrize("weight_map", [None, {}, ["a"]])
def test_an_index_needs_a_weight_map(sharded, weight_map):
    rewrite_index(sharded, lambda index: index.update(weight_map=weight_map))
    assert "has no `weight_map`" in str(refusal(sharded))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x", "..", 3, None])
def test_an_index_may_only_name_files_beside_it(sharded, name):
    rewrite_index(sharded, lambda index: index["weight_map"].update(a=name))
    error = refusal(sharded)
    assert repr(name) in str(error)
    assert "*.safetensors files that lie beside it" in error.hint


def test_a_tensor_in_two_shards_is_refused(sharded):
    mx.save_safetensors(str(sharded / TWO), {"a": mx.zeros((2, 3)), "b": mx.zeros((4,))})
    assert f"tensor `a` is in `{ONE}` and in `{TWO}`" in str(refusal(sharded))


# What each tensor is for ------------------------------------------------------------------------


def plan(tmp_path, *names, **shapes):
    tensors = [TensorInfo(name, tmp_path, (2, 2), "BF16") for name in names]
    tensors += [TensorInfo(name, tmp_path, shape, dtype) for name, (shape, dtype) in shapes.items()]
    return plan_tensors({info.name: info for info in tensors})


def left_out(plan):
    return {why: [info.name for info in infos] for why, infos in plan.left_out.items()}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        (f"{EMBEDDING}.weight", f"{EMBEDDING}.weight"),
        (f"{EMBEDDING}.scales", f"{EMBEDDING}.scales"),
        (f"{LAYER}.layer_scalar", f"{LAYER}.layer_scalar"),
        (f"{COPY}.layer_scalar", f"{COPY}.layer_scalar"),
        (f"{LAYER}.router.scale", f"{LAYER}.router.scale"),
        (f"{LAYER}.router.per_expert_scale", f"{LAYER}.router.per_expert_scale"),
        (f"{LAYER}.experts.gate_up_proj", f"{LAYER}.experts.gate_up_proj.weight"),
        (f"{LAYER}.experts.down_proj", f"{LAYER}.experts.down_proj.weight"),
        (f"{LAYER}.experts.down_proj.weight", f"{LAYER}.experts.down_proj.weight"),
        (f"{LAYER}.experts.down_proj.scales", f"{LAYER}.experts.down_proj.scales"),
    ],
)
def test_a_decoder_tensor_fills_the_parameter_of_its_name(tmp_path, name, parameter):
    found = plan(tmp_path, name)
    assert {parameter: info.name for parameter, info in found.used.items()} == {parameter: name}
    assert not found.left_out
    assert not found.unknown


def test_vision_tensors_are_recognised(tmp_path):
    names = [*tiny.VISION_TENSORS, "model.encoder.vision_tower.std_bias"]
    assert left_out(plan(tmp_path, *names)) == {"vision": names}


def test_repeats_of_decoder_tensors_are_recognised(tmp_path):
    originals = [
        f"{EMBEDDING}.weight",
        f"{LAYER}.experts.down_proj",
        f"{LAYER}.router.scale",
        f"{LAYER}.self_attn.q_proj.weight",
        f"{LAYER}.self_attn.q_proj.scales",
    ]
    repeats = [name.replace(LAYER, COPY) for name in originals[1:]]
    repeats += ["model.encoder.language_model.embed_tokens.weight", "lm_head.weight"]
    found = plan(tmp_path, *repeats, *originals)
    assert left_out(found) == {"tied": repeats}
    assert len(found.used) == len(originals)


def test_a_repeat_may_be_packed_otherwise(tmp_path):
    packed = {
        f"lm_head.{leaf}": shape
        for leaf, shape in {"weight": ((2, 1), "U32"), "scales": ((2, 9), "BF16")}.items()
    }
    found = plan(tmp_path, f"{EMBEDDING}.weight", "lm_head.biases", **packed)
    assert left_out(found) == {"tied": ["lm_head.biases", *packed]}


def test_a_repeat_of_nothing_is_unknown(tmp_path):
    names = [
        "lm_head.weight",
        f"{COPY}.mlp.up_proj.weight",
        f"{COPY}.garbage",
        "model.encoder.language_model.norm.weight",
    ]
    found = plan(tmp_path, *names, f"{LAYER}.layer_scalar")
    assert [info.name for info in found.unknown] == names


def test_a_head_has_no_bias(tmp_path):
    found = plan(tmp_path, "lm_head.bias", f"{EMBEDDING}.weight")
    assert [info.name for info in found.unknown] == ["lm_head.bias"]


def test_frequencies_are_computed_anew(tmp_path):
    names = ["model.decoder.rotary_emb.inv_freq", f"{COPY}.self_attn.rotary_emb.inv_freq"]
    assert left_out(plan(tmp_path, *names)) == {"derived": names}


@pytest.mark.parametrize("name", ["extra", "model.norm.weight", "language_model.x", "lm_head"])
def test_other_names_are_unknown(tmp_path, name):
    assert [info.name for info in plan(tmp_path, name).unknown] == [name]
