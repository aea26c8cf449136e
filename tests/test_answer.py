"""Answers are told apart into text, thought and tool calls however their tokens arrive."""

import random
import re
import time

import pytest
from gemma_form import ANSWERS, CALL, Answer, demo_folder, token_ids

from mlx_diffusiongemma.answer import AnswerStream, TextDelta
from mlx_diffusiongemma.text import MARKERS, Tokenizer

CANVAS = 16


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """The demo's vocabulary with all of Gemma 4's control tokens."""
    special = ("<|think|>", '<|"|>', *MARKERS)
    return Tokenizer.load(demo_folder(tmp_path_factory.mktemp("answer") / "t", special=special))


def chunkings(length: int) -> list[list[int]]:
    """Where to cut a list of this length: nowhere, everywhere, at each place, in canvases."""
    everywhere = list(range(1, length))
    generator = random.Random(length)
    cuts = [[], everywhere, *([at] for at in everywhere), list(range(CANVAS, length, CANVAS))]
    return cuts + [sorted(generator.sample(everywhere, len(everywhere) // 3)) for _ in range(5)]


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    return [ids[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]


def read(tokenizer: Tokenizer, chunks: list[list[int]], stop=(), **keywords) -> AnswerStream:
    """Read an answer to its end and check that what streamed out is what it holds."""
    stream = AnswerStream(tokenizer, stop, **keywords)
    deltas = [stream.add(chunk) for chunk in chunks]
    before = (stream.text, stream.thought)
    deltas.append(stream.finish())
    assert "".join(delta.text for delta in deltas) == stream.text
    assert "".join(delta.thought for delta in deltas) == stream.thought
    assert stream.text.startswith(before[0]) and stream.thought.startswith(before[1])
    assert [delta.stopped for delta in deltas] == sorted(delta.stopped for delta in deltas)
    return stream


def result(stream: AnswerStream) -> tuple:
    return stream.text, stream.thought, stream.tool_calls, stream.token_count


# Channels, tool calls, special tokens ---------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_told_apart_however_it_is_cut(tokenizer, answer: Answer):
    ids = token_ids(tokenizer, answer.spelled)
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts))
        assert stream.text == answer.text
        assert stream.thought == answer.thought
        assert stream.tool_calls == answer.tool_calls
        assert stream.token_count == len(ids)


@pytest.mark.parametrize("seed", range(30))
def test_no_special_token_is_ever_shown_and_no_word_lost(tokenizer, seed):
    generator = random.Random(seed)
    special = sorted(tokenizer.special_token_ids)
    words = [f" word{number}" for number in range(40)]
    ids = []
    for word in words:
        ids += generator.choices(special, k=generator.randrange(3)) + token_ids(tokenizer, word)
    stream = read(tokenizer, [ids])
    for visible in (stream.text, stream.thought):
        assert not re.search(r"<\||\|>|<pad>|<bos>|<eos>|<unk>|<mask>", visible)
    found = " ".join([stream.text, stream.thought, *stream.tool_calls])
    assert sorted(re.findall(r"word\d+", found)) == sorted(word.strip() for word in words)
    for cuts in chunkings(len(ids))[:2]:
        assert result(read(tokenizer, cut(ids, cuts))) == result(stream)


def test_the_name_of_a_channel_is_not_shown_before_it_is_known(tokenizer):
    stream = AnswerStream(tokenizer)
    shown = [stream.add([i]) for i in token_ids(tokenizer, "<|channel>thought\n")]
    assert {(delta.text, delta.thought) for delta in shown} == {("", "")}
    assert stream.add(token_ids(tokenizer, "Hm")) == TextDelta("", "Hm", stopped=False)


def test_words_are_shown_at_once(tokenizer):
    stream = AnswerStream(tokenizer, stop=["zebra"])
    for token_id in token_ids(tokenizer, "One frog sat by the pond."):
        assert stream.add([token_id]).text == tokenizer.decode([token_id])


def test_a_finished_answer_stays_as_it_is(tokenizer):
    stream = read(tokenizer, [token_ids(tokenizer, f"a<|tool_call>{CALL}")])
    assert stream.finish() == TextDelta("", "", stopped=False)
    assert (stream.text, stream.tool_calls) == ("a", (CALL,))


@pytest.mark.parametrize(
    ("prompt", "answer", "text", "thought", "calls"),
    [
        ("<|turn>model\n<|channel>thought\n", "Hm.<channel|>Yes.", "Yes.", "Hm.", ()),
        ("<|turn>model\n<|channel>thought\n<channel|>", "Yes.", "Yes.", "", ()),
        ("<|turn>model\n<|channel>", "thought\nHm.<channel|>Yes.", "Yes.", "Hm.", ()),
        ("<|channel>thought\nIt", " is.<channel|>Yes.", "Yes.", " is.", ()),
        ("<|channel>thought\nold<turn|><|turn>model\n", "Yes.", "Yes.", "", ()),
        ("<|turn>model\n<|tool_call>call:", "f{}<tool_call|>Yes.", "Yes.", "", ("f{}",)),
        ("<|turn>user\nthought STOP", "thought", "thought", "", ()),
    ],
)
def test_an_answer_goes_on_where_the_prompt_ends(tokenizer, prompt, answer, text, thought, calls):
    ids = token_ids(tokenizer, answer)
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), ["STOP"], prompt_ids=token_ids(tokenizer, prompt))
        assert result(stream) == (text, thought, calls, len(ids))


def test_half_a_character_in_the_prompt_is_not_part_of_the_answer(tokenizer):
    prompt = as_bytes(tokenizer, "漢")[:2]
    assert read(tokenizer, [token_ids(tokenizer, "a")], prompt_ids=prompt).text == "a"


# UTF-8 ----------------------------------------------------------------------------------------


UNICODE = "naïve 漢字 e\u0301 👩\u200d🔬 \U00010348 🇩🇪 \ufffd!"


def as_bytes(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens that spell a text byte by byte."""
    ids = [tokenizer.id_of(f"<0x{byte:02X}>") for byte in text.encode()]
    assert None not in ids
    return ids


def test_a_character_split_over_tokens_comes_out_whole(tokenizer):
    ids = as_bytes(tokenizer, UNICODE)
    for cuts in chunkings(len(ids)):
        assert read(tokenizer, cut(ids, cuts)).text == UNICODE
    stream = AnswerStream(tokenizer)
    assert [delta for i in ids if (delta := stream.add([i]).text)] == list(UNICODE)


@pytest.mark.parametrize("opening", ["<|channel>thought\n", "<|tool_call>"])
def test_a_character_split_over_tokens_comes_out_whole_everywhere(tokenizer, opening):
    ids = token_ids(tokenizer, opening) + as_bytes(tokenizer, UNICODE)
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts))
        assert [stream.text, stream.thought, *stream.tool_calls].count(UNICODE) == 1


def test_a_character_survives_a_special_token_within_it(tokenizer):
    first, second = as_bytes(tokenizer, "é")
    assert read(tokenizer, [[first, tokenizer.id_of("<pad>"), second]]).text == "é"


def test_half_a_character_is_replaced_where_it_stands(tokenizer):
    half = as_bytes(tokenizer, "漢")[:2]
    ends = {"": ("\ufffd", ""), "a": ("\ufffda", ""), "<|channel>thought\na": ("\ufffd", "a")}
    for rest, (text, thought) in ends.items():
        ids = half + (token_ids(tokenizer, rest) if rest else [])
        for cuts in chunkings(len(ids)):
            stream = read(tokenizer, cut(ids, cuts))
            assert (stream.text, stream.thought) == (text, thought)


def test_a_token_outside_the_vocabulary_is_replaced(tokenizer):
    assert read(tokenizer, [[10**6, *token_ids(tokenizer, "a")]]).text == "\ufffda"


# Stop strings ---------------------------------------------------------------------------------


def stopped_by_hand(text: str, stop: tuple[str, ...]) -> str:
    """The text before the first stop string to be complete, read letter by letter."""
    for end in range(1, len(text) + 1):
        complete = [each for each in stop if text[:end].endswith(each)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def count_by_hand(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]) -> int:
    """How many tokens it takes until the visible text holds a stop string."""
    for count in range(len(ids) + 1):
        stream = AnswerStream(tokenizer)
        stream.add(ids[:count])
        if any(each in stream.text for each in stop):
            return count
    return len(ids)


@pytest.mark.parametrize("seed", range(40))
def test_stop_strings_end_an_answer_however_it_is_cut(tokenizer, seed):
    generator = random.Random(seed)
    text = "".join(generator.choices("aab \né", k=40))
    stop = tuple(
        "".join(generator.choices("aab \né", k=generator.randrange(1, 7))) for _ in range(3)
    )
    ids = token_ids(tokenizer, text) if seed % 2 else as_bytes(tokenizer, text)
    expected = stopped_by_hand(text, stop)
    count = count_by_hand(tokenizer, ids, stop)
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), stop)
        assert (stream.text, stream.token_count) == (expected, count)
        assert not any(each in stream.text for each in stop)


@pytest.mark.parametrize("at", [CANVAS - 2, CANVAS - 1, CANVAS, CANVAS + 1])
def test_a_stop_string_across_the_border_of_two_canvases_does_not_leak(tokenizer, at):
    ids = as_bytes(tokenizer, "." * at + "END" + "." * 20)
    stream = AnswerStream(tokenizer, ["END"])
    deltas = [stream.add(chunk) for chunk in cut(ids, [CANVAS, 2 * CANVAS])]
    assert "".join(delta.text for delta in deltas) == "." * at
    assert deltas[-1].stopped and stream.token_count == at + 3
    assert stream.finish() == TextDelta("", "", stopped=True)
    assert (stream.text, stream.token_count) == ("." * at, at + 3)


def test_what_could_become_a_stop_string_waits(tokenizer):
    stream = AnswerStream(tokenizer, ["END", "DO"])
    shown = [stream.add(as_bytes(tokenizer, letter)).text for letter in "aEENxED"]
    assert shown == ["a", "", "E", "", "ENx", "", "E"]
    assert stream.finish() == TextDelta("D", "", stopped=False)


def test_the_first_stop_string_to_be_complete_wins(tokenizer):
    for stop in (("bcd", "c"), ("c", "bcd")):
        assert read(tokenizer, [token_ids(tokenizer, "abcd")], stop).text == "ab"
    assert read(tokenizer, [token_ids(tokenizer, "abcd")], ("c", "bc")).text == "a"
    frog = token_ids(tokenizer, " frog")
    assert len(frog) == 1, "both are to be complete with one token"
    assert read(tokenizer, [frog], ("rog", "o")).text == " fr"


def test_a_stop_string_may_be_complete_only_at_the_end(tokenizer):
    ids = token_ids(tokenizer, "a x<|channel>fi")  # which could have become `final`
    stream = AnswerStream(tokenizer, ["xfi"])
    assert stream.add(ids) == TextDelta("a ", "", stopped=False)
    assert stream.finish() == TextDelta("", "", stopped=True)
    assert stream.token_count == len(ids)


def test_a_stop_string_may_be_complete_only_at_a_marker(tokenizer):
    ids = token_ids(tokenizer, f"a x<|channel>fi<|tool_call>{CALL}")
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), ["xfi"])
        count = ids.index(tokenizer.id_of("<|tool_call>")) + 1
        assert result(stream) == ("a ", "", (), count)


def test_after_a_stop_string_nothing_counts(tokenizer):
    ids = token_ids(tokenizer, f"a STOP b<|channel>thought\nc<channel|><|tool_call>{CALL}")
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), ["STOP"])
        assert (stream.text, stream.thought, stream.tool_calls) == ("a ", "", ())
        assert stream.add(ids) == TextDelta("", "", stopped=True)


def test_stop_strings_are_looked_for_in_the_visible_text_alone(tokenizer):
    spelled = f"<|channel>thought\nSTOP<channel|>ST<|tool_call>{CALL}STOP<tool_call|>ART, STOP."
    ids = token_ids(tokenizer, spelled)
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), ["STOP"])
        assert (stream.text, stream.thought) == ("START, ", "STOP")
        assert stream.tool_calls == (f"{CALL}STOP",)


def test_a_stop_string_with_a_thought_within_it_does_not_leak(tokenizer):
    ids = token_ids(tokenizer, "a ST<|channel>thought\nHm<channel|>OP b")
    for cuts in chunkings(len(ids)):
        stream = read(tokenizer, cut(ids, cuts), ["STOP"])
        assert (stream.text, stream.thought) == ("a ", "Hm")


# Time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["One frog sat by the pond. ", "\ufffd", "a<pad>", "\n"])
def test_time_grows_with_the_length_of_an_answer(tokenizer, piece):
    def seconds(length: int) -> float:
        ids = (token_ids(tokenizer, piece * 8) * length)[:length]
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            read(tokenizer, cut(ids, list(range(256, length, 256))), ["STOP", "frog sat by a lake"])
            best = min(best, time.perf_counter() - start)
        return best

    # Eight times the length: 8 if linear, 64 if every token costs the text before it.
    assert seconds(64_000) < 24 * seconds(8_000)
