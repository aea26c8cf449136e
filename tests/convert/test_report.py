"""The report and the card: numbers of a plan, and of a conversion that was carried out."""

import json
import re

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma import device
from mlx_diffusiongemma.checkpoint import read_tensors
from mlx_diffusiongemma.convert.card import card
from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.convert.records import StreamResult, TensorError
from mlx_diffusiongemma.convert.report import report
from mlx_diffusiongemma.convert.table import describe_plan
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES, uniform_recipe, with_changes
from mlx_diffusiongemma.summary import VISION, summarise

MIXED = RECIPES["mixed-4-8"]


def by_class(found):
    return {part.name: part for part in found.classes}


def test_bits_and_bytes_by_class_and_together(write, tensors):
    found = report(plan(write(tensors), MIXED))
    classes = by_class(found)
    assert [classes[name].bits_per_weight for name in ("experts", "embedding", "router")] == [
        4.5,
        8.5,
        16,
    ]
    experts = sum(array.size for name, array in tensors.items() if ".experts." in name)
    assert (classes["experts"].weights, classes["experts"].nbytes) == (experts, experts * 4.5 / 8)
    assert classes["experts"].packing == ("4 bits g64 affine",)
    assert classes["experts"].tensors == 6
    assert sum(part.weights for part in found.classes) == sum(a.size for a in tensors.values())
    text = found.nbytes - classes["vision"].nbytes
    weights = sum(part.weights for part in found.classes) - classes["vision"].weights
    assert found.bits_per_weight == pytest.approx(8 * text / weights)
    assert all(part.largest_error is None for part in found.classes)
    assert found.expert_share == experts / weights
    assert (found.top_k_experts, found.num_experts) == (2, 4)
    assert (found.output, found.seconds, found.peak_memory) == (None, None, None)


def test_every_source_tensor_is_in_the_totals(write, tensors):
    four = Quantization(4, 64)
    packed, _ = tiny.pack(tensors, lambda path: four)
    odd = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"], "x": mx.zeros(1)}
    source = write(packed | odd, quantization=tiny.table(four))
    found = report(plan(source, RECIPES["8bit"], allow_unknown=True, keep_vision=False))
    assert found.source_tensors == len(read_tensors(source)) == len(packed) + 2
    assert found.merged == 2 * sum(name.endswith(".scales") for name in packed)
    assert found.skipped == {
        "repeats a tensor of the decoder that is packed otherwise; not compared": 1,
        "is of the image side": len(tiny.VISION_TENSORS),
        "is unknown": 1,
    }
    # What is packed as it should be stays as it is: nothing is merged.
    same = report(plan(source, with_changes(MIXED, overrides=(("*", four),)), allow_unknown=True))
    assert (same.merged, same.written) == (0, len(packed))


def test_errors_are_the_worst_and_the_mean_by_size(write, tensors):
    source = write(tensors)
    found = plan(source, MIXED)
    down, up = (
        f"model.decoder.layers.0.experts.{name}.weight" for name in ("down_proj", "gate_up_proj")
    )
    errors = {down: TensorError(0.25, 0.1, 0.5), up: TensorError(0.125, 0.4, 0.2)}
    result = StreamResult(errors, {"model.safetensors": "abc"}, 1000, 2.5)
    experts = by_class(report(found, output=source, result=result))["experts"]
    assert experts.largest_error == 0.25
    # gate_up_proj has twice the weights of down_proj.
    assert experts.rms_error == pytest.approx((0.1 + 2 * 0.4) / 3)
    assert experts.search_gain == pytest.approx((0.5 + 2 * 0.2) / 3)


def test_memory_is_what_loading_the_output_is_said_to_need(write, tensors, tmp_path):
    done = convert_checkpoint(write(tensors), tmp_path / "out", MIXED)
    summary = summarise(tmp_path / "out")
    need = device.memory_need(summary.config, summary.tensors, mx.bfloat16, device.DEFAULT_CONTEXT)
    assert done.memory_bytes == need.total
    assert done.text_bytes == summary.nbytes
    assert done.bits_per_weight == pytest.approx(summary.bits_per_weight, rel=1e-6)


def test_a_conversion_reports_errors_and_goes_into_the_card(write, tensors, tmp_path):
    source = write(tensors)
    (source / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# hello\n")
    done = convert_checkpoint(source, tmp_path / "out", MIXED)
    classes = by_class(done)
    assert 0.01 < classes["experts"].rms_error < 0.2 and classes["router"].rms_error is None
    assert classes["embedding"].rms_error < classes["experts"].rms_error / 8
    assert done.seconds > 0 and done.peak_memory > 0 and set(done.sha256) == {"model.safetensors"}
    fields = json.loads(json.dumps(done.as_fields()))
    assert fields["classes"][0]["name"] == "embedding" and fields["source_tensors"] == len(tensors)
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: mlx\n") and "\nlicense: apache-2.0\n" in text
    assert f"`mixed-4-8`: {MIXED.reason}" in text and MIXED.cost in text
    assert f"{classes['experts'].rms_error:.2e}" in text and "4 bits g64 affine" in text
    assert str(tmp_path) not in text
    assert "a token meets 2 of 4" in text and "at work in bfloat16 with" in text
    # What people read here and in `info` are the same words.
    labels = {part.name for part in summarise(tmp_path / "out").classes} - {VISION} | {"vision"}
    assert labels == set(re.findall(r"^\| ([\w -]+) \| [\d,]+ \|", text, re.MULTILINE))


def test_the_card_says_what_was_changed_and_what_the_numbers_leave_out(write, tensors):
    found = plan(write(tensors), uniform_recipe(Quantization(4, 64)))
    text = card(found, report(found))
    assert "Cost:" not in text and "Changed:" not in text and "packed before" not in text
    changes = (("*.q_proj", Quantization(8, 32)), ("experts", None))
    packed, _ = tiny.pack(tensors, lambda path: Quantization(8, 64))
    source = write(packed, name="packed", quantization=tiny.table(Quantization(8, 64)))
    found = plan(source, with_changes(MIXED, overrides=changes))
    for text in (card(found, report(found)), describe_plan(found)):
        assert "Changed: `*.q_proj` has 8 bits g32 affine." in text
        assert "Changed: `experts` has no packing." in text
        assert f"Cost: {MIXED.cost}." in text and "The source was packed before" in text


def test_the_card_names_the_source_on_the_hub(write, tensors):
    found = plan(write(tensors), with_changes(MIXED, search=True))
    text = card(found, report(found), source_name="people/model")
    assert "\nbase_model: people/model\n" in text and "least squares" in text
    assert "license:" not in text
    unpacked = plan(write(tensors), RECIPES["bf16"], layout="transformers")
    text = card(unpacked, report(unpacked))
    assert "base_model" not in text and "library_name: transformers" in text


def test_other_files_are_copied_and_a_second_conversion_gives_the_same_bytes(
    write, tensors, tmp_path
):
    source = write(tensors)
    (source / "tokenizer.json").write_text('{"a": 1}')
    (source / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("one", "two"):
        convert_checkpoint(source, tmp_path / name, "mixed-4-8", max_shard_bytes=100_000)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert files["tokenizer.json"] == b'{"a": 1}' and "chat_template.jinja" in files
    assert len(files) > 6


def test_variants_of_one_source_convert_to_the_same_bytes(write, tensors, tmp_path):
    half = dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])
    lm_head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"]}
    tied = {
        name.replace("model.decoder.", "model.encoder.language_model."): array
        for name, array in tensors.items()
        if name.startswith("model.decoder.layers.") and not name.endswith("layer_scalar")
    }
    variants = {
        "plain": (tensors,),
        "sharded": half,
        "lm_head": (tensors | lm_head,),
        "tied": (tensors | tied | lm_head,),
        "tied across shards": (tied | lm_head, *half),
    }
    written = {}
    for name, files in variants.items():
        convert_checkpoint(write(*files, name=name), tmp_path / f"{name}-out", MIXED)
        written[name] = {
            path.name: path.read_bytes() for path in (tmp_path / f"{name}-out").iterdir()
        }
    assert all(files == written["plain"] for files in written.values())


def test_an_unknown_recipe_is_an_error_before_anything_is_made(write, tensors, tmp_path):
    with pytest.raises(ConfigError, match="'5bit'"):
        convert_checkpoint(write(tensors), tmp_path / "out", "5bit")
    assert not (tmp_path / "out").exists()
