"""The text of the demo model's recipe: right generators, prompts as the template writes."""

import json
import random
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[1] / "examples" / "train_demo"
sys.path.insert(0, str(RECIPE))

import chat_format  # noqa: E402
import conversations  # noqa: E402
import make_tokenizer  # noqa: E402
import stories  # noqa: E402
import sudoku  # noqa: E402
import talk  # noqa: E402
from tasks import TASKS, held_out_sudoku  # noqa: E402


def draws(task, count=200):
    rng = random.Random(f"test {task}")
    return [TASKS[task](rng) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer.make_tokenizer()


# -- Sudoku


def test_there_are_288_grids_each_obeying_the_rules():
    assert len(set(sudoku.GRIDS)) == 288
    for grid in sudoku.GRIDS:
        rows = [grid[start : start + 4] for start in range(0, 16, 4)]
        columns = ["".join(column) for column in zip(*rows, strict=True)]
        boxes = [rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2)]
        assert all(sorted(unit) == list("1234") for unit in rows + columns + boxes)


def test_58_grids_are_held_out_and_training_never_draws_them():
    assert len(sudoku.HELD_OUT_GRIDS) == 58
    assert not set(sudoku.HELD_OUT_GRIDS) & set(sudoku.TRAINING_GRIDS)
    assert len(sudoku.TRAINING_GRIDS) + len(sudoku.HELD_OUT_GRIDS) == 288
    held_out = {sudoku.as_rows(grid) for grid in sudoku.HELD_OUT_GRIDS}
    for task in ("sudoku", "system", "turns"):
        assert not held_out & {example.answer for example in draws(task, 1000)}


def test_evaluation_can_draw_the_held_out_grids():
    rng = random.Random(0)
    held_out = {sudoku.as_rows(grid) for grid in sudoku.HELD_OUT_GRIDS}
    assert {held_out_sudoku(rng).answer for _ in range(1000)} == held_out


def test_every_puzzle_has_one_solution_found_without_the_tables():
    rng = random.Random(1)
    for _ in range(200):
        puzzle, grid = sudoku.make_puzzle(rng, sudoku.GRIDS)
        fitting = [
            g for g in sudoku.GRIDS if all(c in (".", d) for c, d in zip(puzzle, g, strict=True))
        ]
        assert fitting == [grid]
        assert sudoku.FEWEST_CLUES <= 16 - puzzle.count(".") <= sudoku.MOST_CLUES


def test_a_puzzle_with_two_solutions_is_seen_as_such():
    assert sudoku.solutions("." * 16) == 288
    assert sudoku.solutions("12343412........") > 1


# -- Stories


def test_generated_stories_are_right():
    for example in draws("story"):
        assert stories.is_right(example.request, example.answer), example.answer


def test_a_changed_name_animal_or_colour_is_wrong():
    for example in draws("story", 50):
        found = stories.AGREEING.fullmatch(example.answer)
        for slot, options in (
            ("name", stories.NAMES),
            ("animal2", stories.ANIMALS),
            ("colour", stories.COLOURS),
        ):
            used = set(found.groupdict().values())
            other = next(word for word in options if word not in used)
            last = list(re.finditer(rf"\b{found[slot]}\b", example.answer))[-1]
            changed = example.answer[: last.start()] + other + example.answer[last.end() :]
            assert not stories.is_right(example.request, changed), changed
            assert stories.GRAMMATICAL.fullmatch(changed)


def test_a_story_about_something_else_is_wrong():
    rng = random.Random(3)
    _, story = stories.make_story(rng)
    animal = stories.AGREEING.fullmatch(story)["animal"]
    other = next(name for name in stories.ANIMALS if name != animal)
    assert not stories.is_right(f"Tell me a story about {stories.with_article(other)}.", story)


def test_two_friends_of_one_name_agree_but_are_not_right():
    request = "Tell me a story about a fox."
    words = {slot: options[0] for slot, options in stories.CHOICES.items()}
    same_name = stories.TEXT.format(**{**words, "animal2": "cat"})
    assert stories.agrees(request, same_name) and not stories.is_right(request, same_name)
    friends = stories.TEXT.format(**{**words, "animal2": "cat", "name2": "Mia"})
    assert stories.is_right(request, friends)


# -- The other tasks


@pytest.mark.parametrize("task", TASKS)
def test_the_generated_answer_is_right_and_an_empty_one_is_wrong(task):
    for example in draws(task):
        assert example.is_right(example.answer)
        assert not example.is_right("")
        assert example.messages[-1]["role"] == "user"


def test_sums_and_json_are_what_they_say():
    for example in draws("add"):
        a, b = map(int, re.findall(r"\d+", example.request))
        assert example.answer == f"{a} + {b} = {a + b}"
    for example in draws("json"):
        for value in json.loads(example.answer).values():
            assert str(value) in example.request


def test_a_gap_takes_fitting_words_only():
    request = "Fill the gap: Tom has a ___ ball."
    assert talk.gap_is_filled(request, "Tom has a red ball.")
    assert talk.gap_is_filled(request, "Tom has a blue ball.")
    assert not talk.gap_is_filled(request, "Tom has a frog ball.")
    assert not talk.gap_is_filled(request, "Mia has a red ball.")


def test_thoughts_come_in_their_channel_and_only_when_asked_for():
    for example in draws("thinking"):
        assert example.thinking
        assert re.fullmatch(r"<\|channel>thought\n[^<]+<channel\|>[^<]+", example.answer)
    for task in set(TASKS) - {"thinking"}:
        assert not any(example.thinking or "<|" in example.answer for example in draws(task, 50))


# -- Chat format and tokenizer


@cache
def chat_template():
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers does
    return environment.from_string((RECIPE / "chat_template.jinja").read_text())


def render_with_jinja(messages, thinking):
    return chat_template().render(
        messages=messages, bos_token="<bos>", add_generation_prompt=True, enable_thinking=thinking
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("thinking", [False, True])
def test_training_prompts_equal_the_chat_template(task, thinking):
    for example in draws(task, 30):
        want = render_with_jinja(example.messages, thinking)
        assert chat_format.render(example.messages, thinking=thinking) == want


def test_history_keeps_answers_and_drops_thoughts():
    messages = [
        conversations.user("2 + 2"),
        conversations.model("<|channel>thought\nAdd 2 and 2: 4.<channel|>2 + 2 = 4"),
        conversations.user("And 3 more?"),
    ]
    text = chat_format.render(messages, thinking=True)
    assert text == (
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\n2 + 2<turn|>\n"
        "<|turn>model\n2 + 2 = 4<turn|>\n<|turn>user\nAnd 3 more?<turn|>\n<|turn>model\n"
    )
    assert render_with_jinja(messages, True) == text


def test_control_tokens_have_gemma_4_ids(tokenizer):
    want = {
        "<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "<|tool_call>": 48,
        "<tool_call|>": 49, "<|tool_response>": 50, "<|think|>": 98, "<|channel>": 100,
        "<channel|>": 101, "<|turn>": 105, "<turn|>": 106, "\n": 107,
    }  # fmt: skip
    assert {token: tokenizer.token_to_id(token) for token in want} == want
    assert tokenizer.get_vocab_size() == make_tokenizer.VOCAB_SIZE


def test_the_tokenizer_returns_any_text(tokenizer):
    printable = "".join(map(chr, range(32, 127)))
    for text in (printable, 'x\n{"a": [1, 2]}\t', "naïve 🙂 日本", "  two  spaces "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_the_shipped_demo_has_the_tokenizer_and_template_of_the_recipe(tokenizer):
    from tokenizers import Tokenizer

    demo = files("mlx_diffusiongemma") / "demo"
    template = (RECIPE / "chat_template.jinja").read_text()
    assert (demo / "chat_template.jinja").read_text() == template
    shipped = Tokenizer.from_str((demo / "tokenizer.json").read_text())
    assert shipped.get_vocab() == tokenizer.get_vocab()
    for task in TASKS:
        for example in draws(task, 30):
            assert shipped.encode(example.answer).ids == tokenizer.encode(example.answer).ids


def test_every_answer_fits_its_canvases(tokenizer):
    for task in TASKS:
        canvases = 3 if task == "story" else 1
        for example in draws(task, 500):
            ids = tokenizer.encode(example.answer, add_special_tokens=False).ids
            assert 32 * (canvases - 1) < len(ids) + 1 <= 32 * canvases, example.answer
