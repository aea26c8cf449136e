"""What a checkpoint is, from its headers: parameters, bits and bytes by class."""

import json

import mlx.core as mx
import pytest
import tiny
from mlx.utils import tree_flatten

from mlx_diffusiongemma.config import read_config
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.summary import VISION, summarise
from mlx_diffusiongemma.weights import load_weights

VALUES = tiny.config_values()
FOUR, EIGHT = Quantization(4, 64), Quantization(8, 64)
# By hand from the sizes in tiny.py: hidden 128, 3 layers, 4 experts of width 128, vocabulary 96.
EXPECTED = {
    "embedding": 96 * 128,
    "attention": 2 * 128 * 32 * (2 * 4 + 2 * 2) + 128 * 64 * (2 * 4 + 1),
    "dense MLP": 3 * 3 * 128 * 128,
    "experts": 3 * 3 * 4 * 128 * 128,
    "router": 3 * (4 * 128 + 128 + 4),
    "self-conditioning": 3 * 128 * 128,
    "norms and scalars": 3 * (7 * 128 + 2) + 2 * 2 * 32 + 2 * 64 + 2 * 128,
    VISION: 16 * 48 + 128 * 16,
}


@pytest.fixture(scope="module")
def released():
    return tiny.random_tensors(VALUES)


def parameters(summary):
    return {part.name: part.parameters for part in summary.classes}


def test_parameters_and_bytes_by_class(tmp_path, released):
    summary = summarise(tiny.write_checkpoint(tmp_path, VALUES, released))
    assert parameters(summary) == EXPECTED
    assert list(parameters(summary)) == list(EXPECTED)  # the order in which they are told
    assert {part.nbytes for part in summary.classes} == {2 * size for size in EXPECTED.values()}
    assert {part.bits_per_weight for part in summary.classes} == {16}


def test_totals_leave_vision_out(tmp_path, released):
    summary = summarise(tiny.write_checkpoint(tmp_path, VALUES, released))
    total = sum(EXPECTED.values()) - EXPECTED[VISION]
    assert (summary.parameters, summary.nbytes, summary.bits_per_weight) == (total, 2 * total, 16)
    assert (summary.memory_bytes(2), summary.memory_bytes(4)) == (2 * total, 4 * total)
    assert summary.active_parameters == total - EXPECTED["experts"] // 2  # two of four


@pytest.mark.parametrize(
    "how",
    [Quantization(3, 64), Quantization(5, 32), Quantization(4, 32, "mxfp4")],
    ids=lambda how: f"{how.mode}-{how.bits}",
)
def test_packed_weights_count_as_what_they_stand_for(tmp_path, released, how):
    packed, _ = tiny.pack(released, lambda path: None if ".router." in path else how)
    values = VALUES | {"quantization": tiny.table(how)}
    summary = summarise(tiny.write_checkpoint(tmp_path, values, packed))
    assert parameters(summary) == EXPECTED
    bits = {part.name: part.bits_per_weight for part in summary.classes}
    assert bits["embedding"] == bits["attention"] == bits["experts"] == how.bits_per_weight
    assert bits["router"] == bits["norms and scalars"] == bits[VISION] == 16


def test_packings_count_matrices_by_class(tmp_path, released):
    def how_of(path):
        return None if ".router." in path else EIGHT if ".layers.0.self_attn" in path else FOUR

    packed, _ = tiny.pack(released, how_of)
    odd = {name.rpartition(".")[0]: EIGHT for name in packed if ".layers.0.self_attn" in name}
    values = VALUES | {"quantization": tiny.table(FOUR, odd)}
    packings = summarise(tiny.write_checkpoint(tmp_path, values, packed)).packings
    assert list(packings) == [FOUR, EIGHT, None]  # the most bytes first
    attention = {FOUR: 7, EIGHT: 4}  # the full layer shares keys and values
    assert {how: counts.get("attention") for how, counts in packings.items() if how} == attention
    assert packings[FOUR]["experts"] == 6 and packings[FOUR]["dense MLP"] == 9
    assert packings[None] == {"router": 3}
    assert sum(map(sum, (counts.values() for counts in packings.values()))) == 33


def test_the_memory_is_that_of_the_loaded_model(tmp_path, released):
    how = Quantization(4, 64)
    packed, _ = tiny.pack(released, lambda path: how)
    folder = tiny.write_checkpoint(tmp_path, VALUES | {"quantization": tiny.table(how)}, packed)
    model = load_weights(read_config(folder), folder, mx.float32)
    nbytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert summarise(folder).memory_bytes(4) == nbytes


def test_files_are_counted_whole(tmp_path, released):
    items = list(released.items())
    folder = tiny.write_checkpoint(tmp_path, VALUES, dict(items[::2]), dict(items[1::2]))
    mx.save_safetensors(str(folder / "adapters.safetensors"), {"lora": mx.zeros((2,))})
    summary = summarise(folder)
    sizes = [path.stat().st_size for path in folder.glob("model-*.safetensors")]
    assert (summary.files, summary.file_bytes) == (2, sum(sizes))


def test_what_is_not_loaded_is_told_by_reason(tmp_path, released):
    extra = {
        "lm_head.weight": released["model.decoder.embed_tokens.weight"],
        "model.decoder.rotary_emb.inv_freq": mx.zeros((4,)),
        "surprise": mx.zeros((1,)),
    }
    summary = summarise(tiny.write_checkpoint(tmp_path, VALUES, released | extra))
    assert {part.reason: (part.tensors, part.nbytes) for part in summary.left_out} == {
        "vision": (2, 2 * EXPECTED[VISION]),
        "tied": (1, 2 * EXPECTED["embedding"]),
        "derived": (1, 16),
    }
    assert summary.unknown == ("surprise",)
    assert parameters(summary) == EXPECTED


def test_a_file_that_holds_nothing_but_unknown_tensors_counts(tmp_path, released):
    folder = tiny.write_checkpoint(tmp_path, VALUES, released, {"surprise": mx.zeros((1,))})
    assert summarise(folder).files == 2


def test_nothing_but_headers_is_read(tmp_path, released, monkeypatch):
    monkeypatch.setattr(mx, "load", None)
    folder = tiny.write_checkpoint(tmp_path, VALUES, released)
    assert len(summarise(folder).tensors) == len(released) - 2


def test_settings_and_dtype_are_the_checkpoints(tmp_path, released):
    folder = tiny.write_checkpoint(tmp_path, VALUES, released)
    (folder / "generation_config.json").write_text(json.dumps({"max_denoising_steps": 9}))
    summary = summarise(folder)
    assert summary.dtype == "bfloat16"
    assert summary.config == read_config(folder)
    assert summary.generation_config.sampler.max_denoising_steps == 9
    assert summary.folder == folder


WITH_THINKING = "{% if enable_thinking %}<think>{% endif %}{{ messages }}"
NAMED = [{"name": "tools", "template": ""}, {"name": "default", "template": WITH_THINKING}]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("chat_template.jinja", WITH_THINKING, (True, True)),
        ("chat_template.jinja", "{{ messages }}", (True, False)),
        ("tokenizer_config.json", json.dumps({"chat_template": WITH_THINKING}), (True, True)),
        ("tokenizer_config.json", json.dumps({"chat_template": NAMED}), (True, True)),
        ("tokenizer_config.json", json.dumps({"chat_template": NAMED[:1]}), (False, False)),
        ("tokenizer_config.json", json.dumps({"chat_template": None}), (False, False)),
        ("tokenizer_config.json", json.dumps({"model_max_length": 8}), (False, False)),
        ("README.md", WITH_THINKING, (False, False)),
    ],
)
def test_the_chat_template_is_read_as_text(tmp_path, released, name, content, expected):
    folder = tiny.write_checkpoint(tmp_path, VALUES, released)
    (folder / name).write_text(content)
    summary = summarise(folder)
    assert (summary.has_chat_template, summary.supports_thinking) == expected


def test_a_damaged_checkpoint_is_an_error(tmp_path, released):
    folder = tiny.write_checkpoint(tmp_path, VALUES, released)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        summarise(folder)
