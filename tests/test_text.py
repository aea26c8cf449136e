"""A tokenizer loads or says what is wrong with it; token ids become text and nothing is lost."""

import json
import random
import shutil

import pytest
from gemma_form import DEMO, demo_folder, token_ids

from mlx_diffusiongemma.errors import CheckpointError, PromptError
from mlx_diffusiongemma.text import MARKERS, Tokenizer


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    """The demo checkpoint's own tokenizer and template."""
    return Tokenizer.load(DEMO)


# What is loaded -------------------------------------------------------------------------------


def test_the_end_tokens_are_the_tokenizer_s_and_the_end_of_a_turn(demo):
    assert demo.eos_token_ids == {demo.id_of("<eos>"), demo.id_of("<turn|>")}


def test_every_control_token_is_special(demo):
    names = ("<pad>", "<eos>", "<bos>", "<unk>", "<|image|>", "<|turn>", "<turn|>", "<|think|>")
    assert {demo.id_of(name) for name in names} <= demo.special_token_ids
    assert {demo.id_of(name) for name in MARKERS} - {None} <= demo.special_token_ids
    assert demo.id_of("▁the") is None or demo.id_of("▁the") not in demo.special_token_ids


def test_a_marker_is_special_even_where_the_file_forgot_to_say_so(tmp_path):
    folder = demo_folder(tmp_path / "t")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = token["content"] not in MARKERS
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    loaded = Tokenizer.load(folder)
    assert {loaded.id_of(name) for name in MARKERS} - {None} <= loaded.special_token_ids


def test_the_vocabulary_has_the_size_of_the_model_s(demo):
    assert (
        demo.vocab_size
        == json.loads((DEMO / "config.json").read_text())["text_config"]["vocab_size"]
    )


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="has no tokenizer.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ['{"version": "1.0", "add', '{"version": "1.0"}', "[]"])
def test_a_broken_tokenizer_is_an_error(tmp_path, content):
    folder = demo_folder(tmp_path / "t")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read") as error:
        Tokenizer.load(folder)
    assert error.value.hint


VISION = json.loads((DEMO / "config.json").read_text()) | {"vision_config": 5}


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer_config.json", []), ("config.json", VISION)]
)
def test_a_broken_file_beside_the_tokenizer_is_an_error(tmp_path, name, content):
    folder = demo_folder(tmp_path / "t")
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(folder)


def test_a_tokenizer_that_loses_text_is_an_error(tmp_path):
    folder = demo_folder(tmp_path / "t")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["<a byte that is gone>"] = vocabulary.pop("<0xE6>")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="does not give a text back"):
        Tokenizer.load(folder)


# Token ids -> text ----------------------------------------------------------------------------


def random_text(generator: random.Random) -> str:
    alphabet = [
        *"abc ABC 0123 .,!?<>|\n\t",
        *"éßñ漢字ひ한글ภाا",
        *"🙂👩\u200d🔬🇩🇪",
        "e\u0301",
        "\U00010348",
    ]
    return "".join(generator.choices(alphabet, k=generator.randrange(1, 60)))


@pytest.mark.parametrize("seed", range(20))
def test_text_survives_the_round_trip(demo, seed):
    text = random_text(random.Random(seed))
    assert demo.decode(token_ids(demo, text)) == text


def test_special_tokens_are_not_text(demo):
    assert demo.decode(demo.special_token_ids) == ""
    assert demo.decode(token_ids(demo, "a<pad>b<turn|>c<|channel>d")) == "abcd"


def test_bytes_that_are_no_text_are_replaced(demo):
    broken = [demo.id_of(f"<0x{byte:02X}>") for byte in (0x61, 0xE2, 0x82, 0x62, 0xFF)]
    assert demo.decode(broken) == "a\ufffdb\ufffd"


def test_only_the_token_for_a_space_is_a_space(demo):
    spelled_in_bytes = [demo.id_of(f"<0x{byte:02X}>") for byte in "\u2581".encode()]
    assert demo.decode([demo.id_of("\u2581"), *spelled_in_bytes]) == " \u2581"


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_replaced(demo, token_id):
    assert demo.decode([token_id]) == "\ufffd"


def test_a_checkpoint_moves_with_its_folder(demo, tmp_path):
    shutil.copytree(DEMO, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors"))
    assert Tokenizer.load(tmp_path / "copy").encode_prompt("Hi") == demo.encode_prompt("Hi")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "poem", "text": "a"},
        {"type": ["text"], "text": "a"},
        {"type": "text"},
        {"text": ""},
    ],
)
def test_a_part_that_is_no_text_is_an_error(demo, part):
    with pytest.raises(PromptError, match="a part of type"):
        demo.encode_prompt([{"role": "user", "content": [part]}])


@pytest.mark.parametrize("chat_template", [True, False])
def test_text_that_is_no_unicode_is_an_error(demo, chat_template):
    with pytest.raises(PromptError, match="not valid Unicode"):
        demo.encode_prompt("a\udc80b", chat_template=chat_template)
