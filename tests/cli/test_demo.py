"""The command with the real runtime and the demo model, in this process."""

import json
import re

import pytest

STORY = "Tell me a story about a frog."
DEMO = ("--model", "demo", "--seed", "1")


@pytest.fixture
def run_demo(run_here):
    return lambda command, *args, **more: run_here(command, *DEMO, *args, fake=False, **more)


def test_watching_does_not_change_the_answer(run_demo):
    plain = run_demo("generate", STORY)
    watched = run_demo("generate", STORY, "--watch", "--stats")
    assert plain.code == 0 and len(plain.out.split()) > 3
    assert watched.out == plain.out
    assert watched.err.startswith("canvas 1  step 1/") and "\x1b" not in watched.err
    assert watched.err.splitlines()[-1].startswith("finish reason  ")


def test_json_holds_what_text_shows(run_demo):
    shown = run_demo("generate", STORY).out
    run = run_demo("generate", STORY, "--json")
    result = json.loads(run.out)
    assert result["text"] + "\n" == shown
    assert result["stats"]["seed"] == 1
    assert result["stats"]["generated_tokens"] == len(result["token_ids"])


def test_the_budget_is_exact_and_a_cut_answer_says_so(run_demo):
    run = run_demo("generate", STORY, "--json", "--max-tokens", "7")
    result = json.loads(run.out)
    assert len(result["token_ids"]) == 7 and result["finish_reason"] == "length"
    assert run.err == "note: the answer was cut at 7 tokens; --max-tokens allows more\n"


def test_a_stop_string_ends_the_answer_before_it(run_demo):
    whole = run_demo("generate", STORY).out
    word = whole.split()[2]
    assert run_demo("generate", STORY, "--stop", word).out.rstrip("\n") == whole.split(word)[0]


def test_a_chat_remembers(run_demo):
    run = run_demo("chat", lines=["Hello", STORY, "/history"])
    assert run.code == 0
    hello, story = run.out.splitlines()
    assert run.err.splitlines() == [
        "1 you: Hello",
        f"1 model: {hello}",
        f"2 you: {STORY}",
        f"2 model: {story}",
    ]


def test_a_chat_reads_only_what_is_new_also_after_an_edit(run_demo):
    lines = ["Hello", STORY, "/retry", "/edit 2 2 + 2 =", "/undo", "Who are you?"]
    run = run_demo("chat", "--stats", "--max-tokens", "8", lines=lines)
    prompts = re.findall(r"^prompt +(\d+) tokens in", run.err, re.MULTILINE)
    kept = re.findall(r"^kept from before +(\d+) tokens$", run.err, re.MULTILINE)
    assert len(prompts) == 5 and len(kept) == 4, "the first turn has nothing before it"
    assert prompts[2] == "0", "a retry reads nothing"
    assert kept[2] == kept[3], "both edits go back to the end of the first exchange"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "foo"], "`foo`"),
        (["--model", "./no/such"], "`./no/such`"),
        (["--model", "org/name"], "`org/name`"),
        (["--model", ""], "there is no folder ``"),
        (["--revision", "v9"], "`v9`"),
        (["--model", "org/name", "--revision", ""], "revision is ''"),
        (["--model", "org/name", "--revision", "../x"], "revision is '../x'"),
        (["--dtype", "int4"], "'int4'"),
        (["--t-min", "2"], "t_min is 2.0 and t_max is 0.6"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_in_one_line_with_a_hint(run_demo, args, message):
    run = run_demo("generate", "Hello", *args)
    assert (run.code, run.out) == (1, "")
    first, empty, hint = run.err.splitlines()
    assert first.startswith("error: ") and message in first
    assert empty == "" and hint.startswith("hint: ")


def test_an_empty_folder_is_no_model(run_here, tmp_path):
    run = run_here("generate", "Hello", "--model", str(tmp_path), fake=False)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ") and str(tmp_path) in run.err


def test_memory_that_looks_too_small_is_an_error_unless_forced(run_demo, monkeypatch):
    from mlx_diffusiongemma import device

    monkeypatch.setattr(device, "available_memory", lambda: 1000)
    run = run_demo("generate", "Hello")
    assert run.code == 1 and "hint: " in run.err
    assert run_demo("generate", "Hello", "--force").code == 0
