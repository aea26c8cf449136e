"""The plan: every source tensor accounted for, every output as the model expects it."""

import json
import subprocess
import sys
from collections import Counter

import mlx.core as mx
import pytest
import sparse
import tiny
from mlx.utils import tree_flatten

from mlx_diffusiongemma.checkpoint import read_tensors
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import (
    PACKABLE_CLASSES,
    RECIPES,
    Recipe,
    uniform_recipe,
    with_changes,
)
from mlx_diffusiongemma.released import released_values

MIXED = RECIPES["mixed-4-8"]
SCALAR = "layers.0.layer_scalar"
DOWN = "model.decoder.layers.0.experts.down_proj"


def sources(found):
    return [info.name for tensor in found.tensors for info in tensor.sources]


def repeats(tensors):
    """What an export without tying holds besides."""
    repeated = {
        name.replace("model.decoder.", "model.encoder.language_model."): array
        for name, array in tensors.items()
        if name.startswith("model.decoder.") and "self_conditioning" not in name
    }
    own = {name: tensors[name] for name in repeated if name in tensors}
    lm_head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"]}
    return repeated | own | lm_head


@pytest.mark.parametrize("name", RECIPES)
def test_every_source_tensor_is_used_once_and_every_parameter_is_written(
    write, tensors, values, name
):
    source = write(tensors)
    found = plan(source, RECIPES[name])
    assert Counter(sources(found)) == Counter(list(read_tensors(source)))
    assert not found.skipped
    expected = dict(tree_flatten(DiffusionGemma(parse_config(values)).parameters()))
    written = {tensor.parameter for tensor in found.tensors if tensor.tensor_class != "vision"}
    assert written == set(expected)


def test_packed_outputs_have_the_shapes_that_mlx_gives_them(write, tensors):
    for recipe in RECIPES.values():
        for tensor in plan(write(tensors), recipe).tensors:
            if tensor.quantization is None:
                continue
            how = tensor.quantization
            array = tensors[tensor.sources[0].name]
            parts = mx.quantize(array, how.group_size, how.bits, mode=how.mode)
            assert [output.shape for output in tensor.outputs] == [part.shape for part in parts]
            assert [output.nbytes for output in tensor.outputs] == [part.nbytes for part in parts]
            path = tensor.parameter.removesuffix(".weight")
            names = [f"{path}.{leaf}" for leaf in ("weight", "scales", "biases")]
            assert [output.name for output in tensor.outputs] == names[: len(parts)]


def test_both_layer_scalars_are_kept_beside_each_other(write, tensors):
    names = [tensor.parameter for tensor in plan(write(tensors), MIXED).tensors]
    at = names.index(f"model.decoder.{SCALAR}")
    assert names[at + 1] == f"model.encoder.language_model.{SCALAR}"


def test_the_order_is_embedding_then_layer_by_layer_then_images(tmp_path):
    values = tiny.config_values(num_hidden_layers=12, layer_types=None)
    source = tiny.write_checkpoint(tmp_path / "deep", values, tiny.random_tensors(values))
    names = [tensor.parameter for tensor in plan(source, MIXED).tensors]
    assert names[0] == "model.decoder.embed_tokens.weight"
    layers = [int(name.split(".layers.")[1].split(".")[0]) for name in names if ".layers." in name]
    assert layers == sorted(layers)
    assert [name in tiny.VISION_TENSORS for name in names[-3:]] == [False, True, True]


def test_repeats_sharding_and_lm_head_change_nothing(write, tensors):
    plain = plan(write(tensors, name="plain"), MIXED)
    half = dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])
    sharded = plan(write(*half, name="sharded"), MIXED)
    tied = plan(write(tensors | repeats(tensors), name="tied"), MIXED)
    for other in (sharded, tied):
        outputs = [(shard.file, [t.outputs for t in shard.tensors]) for shard in other.shards]
        assert outputs == [(s.file, [t.outputs for t in s.tensors]) for s in plain.shards]
        assert other.config == plain.config
    assert {skipped.reason for skipped in tied.skipped} == {"repeats a tensor of the decoder"}
    assert "lm_head.weight" in {skipped.info.name for skipped in tied.skipped}
    assert len(sources(tied)) + len(tied.skipped) == len(tensors | repeats(tensors))


def test_images_are_kept_untouched_or_left_out(write, tensors):
    wide = {name: tensors[name].astype(mx.float32) for name in tiny.VISION_TENSORS}
    source = write(tensors | wide)
    kept = [t for t in plan(source, MIXED).tensors if t.tensor_class == "vision"]
    assert {t.outputs[0].dtype for t in kept} == {"F32"} and {t.action for t in kept} == {"copy"}
    without = plan(source, MIXED, keep_vision=False)
    assert {s.info.name for s in without.skipped} == set(tiny.VISION_TENSORS)
    assert without.config["vision_config"] is None
    assert plan(source, MIXED).config["vision_config"] is not None


def test_a_source_without_images_keeps_its_config(write, tensors):
    text = {name: array for name, array in tensors.items() if name not in tiny.VISION_TENSORS}
    assert plan(write(text), MIXED, keep_vision=False).config["vision_config"] is not None


def test_other_floats_are_cast_and_the_same_is_copied(write, tensors):
    source = write({name: array.astype(mx.float32) for name, array in tensors.items()})
    text = [t for t in plan(source, RECIPES["bf16"]).tensors if t.tensor_class != "vision"]
    assert {(t.action, t.outputs[0].dtype) for t in text} == {("cast", "BF16")}
    half = with_changes(RECIPES["bf16"], dtype="float16")
    text = [t for t in plan(write(tensors), half).tensors if t.tensor_class != "vision"]
    assert {(t.action, t.outputs[0].dtype) for t in text} == {("cast", "F16")}
    same = plan(write(tensors), RECIPES["bf16"]).tensors
    assert {t.action for t in same} == {"copy"}


def test_the_transformers_layout_has_the_released_names(write, tensors):
    packed, _ = tiny.pack(tensors, lambda path: Quantization(4, 64))
    source = write(packed, quantization=tiny.table(Quantization(4, 64)))
    found = plan(source, RECIPES["bf16"], layout="transformers")
    written = {output.name for tensor in found.tensors for output in tensor.outputs}
    assert written == set(tensors)
    assert not {"quantization", "quantization_config"} & set(found.config)


def test_groups_that_do_not_divide_are_refused_before_any_work(tmp_path):
    values = released_values()
    values["text_config"] |= {"num_hidden_layers": 2, "layer_types": [tiny.SLIDING, tiny.FULL]}
    source = sparse.write_headers(tmp_path, values)
    with pytest.raises(ConfigError) as error:
        plan(source, uniform_recipe(Quantization(4, 128)))
    message = str(error.value)
    assert (
        "layers.0.experts.down_proj` and 1 more with rows of 704 values by groups of 128" in message
    )
    assert "mlp.down_proj` and 2 more with rows of 2112 values by groups of 128" in message
    assert "2816" not in message
    assert error.value.hint and "64 or 32" in error.value.hint
    rest = (("re:.*down_proj", Quantization(4, 64)),)
    assert plan(source, with_changes(uniform_recipe(Quantization(4, 128)), overrides=rest))


def test_rows_that_mlx_cannot_pack_are_refused(tmp_path):
    values = tiny.config_values(hidden_size=48)
    source = tiny.write_checkpoint(tmp_path, values, tiny.random_tensors(values))
    nvfp4 = Recipe("x", dict.fromkeys(PACKABLE_CLASSES, Quantization(4, 16, "nvfp4")), "", "")
    with pytest.raises(ConfigError, match="48 values by groups of 16"):
        plan(source, nvfp4)


def test_the_released_model_is_planned_at_the_promised_size(tmp_path):
    source = sparse.write_headers(tmp_path, released_values())
    found = plan(source, MIXED)
    text = sum(t.nbytes for t in found.tensors if t.tensor_class != "vision")
    assert text / 1e9 == pytest.approx(15.4, rel=0.01)
    assert len(found.shards) == 4
    assert all(shard.nbytes <= 5e9 for shard in found.shards)


def test_an_override_that_means_nothing_is_an_error(write, tensors):
    recipe = with_changes(MIXED, overrides=(("*.expert.*", None),))
    with pytest.raises(ConfigError, match=r"matches '\*\.expert\.\*'"):
        plan(write(tensors), recipe)


def test_shards_stay_below_their_limit_and_tensors_whole(write, tensors):
    source = write(tensors)
    limit = 40_000
    found = plan(source, MIXED, max_shard_bytes=limit)
    assert len(found.shards) > 3
    for shard in found.shards:
        assert shard.nbytes <= limit or len(shard.tensors) == 1
    count = len(found.shards)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    assert [shard.file for shard in found.shards] == names
    assert found.tensors == plan(source, MIXED).tensors
    assert [shard.file for shard in plan(source, MIXED).shards] == ["model.safetensors"]
    with pytest.raises(ConfigError, match="0 bytes"):
        plan(source, MIXED, max_shard_bytes=0)


def test_the_fingerprint_follows_what_is_written(write, tensors):
    source = write(tensors)
    prints = [
        plan(source, MIXED).fingerprint,
        plan(source, MIXED, max_shard_bytes=40_000).fingerprint,
        plan(source, MIXED, keep_vision=False).fingerprint,
        plan(source, with_changes(MIXED, search=True)).fingerprint,
        plan(source, with_changes(MIXED, dtype="float16")).fingerprint,
        plan(source, RECIPES["mixed-3-8"]).fingerprint,
        plan(source, RECIPES["bf16"]).fingerprint,
        plan(source, RECIPES["bf16"], layout="transformers").fingerprint,
    ]
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_is_the_same_in_another_process(write, tensors):
    source = write(tensors)
    script = (
        "import sys; from pathlib import Path\n"
        "from mlx_diffusiongemma.convert.plan import plan\n"
        "from mlx_diffusiongemma.recipes import RECIPES\n"
        "print(plan(Path(sys.argv[1]), RECIPES['mixed-4-8']).fingerprint)"
    )
    for seed in ("1", "2"):
        printed = subprocess.run(
            [sys.executable, "-c", script, source],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.strip() == plan(source, MIXED).fingerprint


def test_other_files_are_listed_and_missing_ones_named(write, tensors):
    source = write(tensors)
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    (source / "training_args.bin").write_text("")
    found = plan(source, MIXED)
    assert found.copied == ("tokenizer.json", "tokenizer_config.json")
    assert found.missing == ("generation_config.json", "processor_config.json")
    assert "processor_config.json" not in plan(source, MIXED, keep_vision=False).missing
