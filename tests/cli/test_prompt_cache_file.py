"""--prompt-cache-file: written once, used afterwards, and refused in one line."""

import re

import pytest

STORY = "Tell me a story about a frog."
RULES = "You are a kind frog who answers all questions in a few friendly words. " * 4
QUICK = ("--model", "demo", "--seed", "1", "--max-tokens", "8")


@pytest.fixture
def generate(run_here, tmp_path):
    path = str(tmp_path / "rules.cache")
    more = ("--system", RULES, "--stats", "--prompt-cache-file", path)
    return lambda *args: run_here("generate", *QUICK, *more, *args, fake=False)


def test_the_first_run_writes_and_the_next_ones_read_only_the_question(generate, tmp_path):
    first = generate(STORY)
    assert re.match(r"note: \d+ tokens written to `.*rules.cache`, [\d.]+ [kM]B\n", first.err)
    written = (tmp_path / "rules.cache").read_bytes()
    again, other = generate(STORY), generate("2 + 2 =")
    assert first.out == again.out != other.out
    assert "prompt            0 tokens in" in again.err
    assert re.search(r"^kept from before +\d\d+ tokens$", other.err, re.MULTILINE)
    assert "rules.cache" not in again.err + other.err
    assert (tmp_path / "rules.cache").read_bytes() == written


def test_the_answer_is_the_one_without_the_file(generate, run_here):
    plain = run_here("generate", *QUICK, "--system", RULES, STORY, fake=False)
    generate("Who are you?")
    assert generate(STORY).out == plain.out


def test_a_file_that_hardly_fits_is_said(generate):
    generate(STORY)
    run = generate("--system", "Be brief.", STORY)
    assert re.match(r"note: only \d of the \d+ tokens in `.*` begin this prompt\n", run.err)


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-10], "is no prompt cache, or it was cut short"),
        (lambda data: data.replace(b'"version":"1"', b'"version":"7"'), "has version 7 of"),
        (lambda data: re.sub(rb'"model":"...', b'"model":"000', data), "another model"),
        (lambda data: re.sub(rb'"template":"...', b'"template":"000', data), "chat template"),
    ],
    ids=["cut short", "version", "model", "template"],
)
def test_a_file_that_does_not_fit_is_one_line(
    generate, run_here, tmp_path, command, damage, message
):
    generate(STORY)
    path = tmp_path / "rules.cache"
    path.write_bytes(damage(path.read_bytes()))
    prompt = [STORY] if command == "generate" else []
    arguments = (*QUICK, "--prompt-cache-file", str(path), *prompt)
    run = run_here(command, *arguments, fake=False, lines=[STORY])
    assert (run.code, run.out) == (1, "")
    error, blank, hint = run.err.splitlines()
    assert error.startswith(f"error: `{path}`") and message in error
    assert hint.startswith("hint: delete the file")


def test_a_folder_is_one_line(run_here, tmp_path):
    run = run_here("generate", *QUICK, "--prompt-cache-file", str(tmp_path), STORY, fake=False)
    assert (run.code, run.err) == (1, f"error: `{tmp_path}`: Is a directory\n")


def test_a_chat_begins_with_it(generate, run_here, tmp_path):
    generate(STORY)
    path = str(tmp_path / "rules.cache")
    more = ("--system", RULES, "--stats", "--prompt-cache-file", path)
    run = run_here("chat", *QUICK, *more, fake=False, lines=["Hello", "2 + 2 ="])
    assert len(re.findall(r"^kept from before +\d\d+ tokens$", run.err, re.MULTILINE)) == 2


def test_a_chat_writes_it_with_its_first_turn(run_here, tmp_path):
    path = tmp_path / "new.cache"
    lines = ["/undo", "Hello", "2 + 2 ="]
    run = run_here("chat", *QUICK, "--prompt-cache-file", str(path), fake=False, lines=lines)
    assert run.err.count("written to") == 1
    assert path.exists()
