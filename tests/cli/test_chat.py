"""`chat` with scripted answers: turns, history commands, and what a failed turn leaves behind."""

import json

import pytest
from fake_runtime import FakeRuntime, answer, block

from mlx_diffusiongemma.cli.chat_loop import COMMANDS
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.options import GenerationOptions


def said(runtime):
    """The last question with its history, as `role: text` lines."""
    return [f"{message['role'][0]}: {message['content']}" for message in runtime.calls[-1][0]]


def test_turns_build_a_history_and_only_answers_reach_standard_output(run_here):
    runtime = FakeRuntime(answer("A", thought="Hm"), answer("B"))
    run = run_here("chat", lines=["a", "", "  ", "b"], runtime=runtime)
    assert (run.code, run.out) == (0, "A\nB\n")
    assert run.err == "Hm\n"
    assert said(runtime) == ["u: a", "a: A", "u: b"]


def test_the_system_message_leads_every_turn(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"), answer("C"))
    lines = ["a", "/system  Be kind. ", "b", "/system", "c"]
    run = run_here("chat", "--system", "Be brief.", lines=lines, runtime=runtime)
    assert [call[0][0]["content"] for call in runtime.calls] == ["Be brief.", "Be kind.", "a"]
    assert run.err == "note: system message set\nnote: no system message\n"


def test_a_line_that_ends_in_a_backslash_goes_on(run_here):
    runtime = FakeRuntime(answer("A"))
    run_here("chat", lines=["one\\", "two"], runtime=runtime)
    assert said(runtime) == ["u: one\ntwo"]


def test_history_shows_the_numbers_that_edit_takes(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"))
    run = run_here("chat", "--system", "S", lines=["a", "b", "/history"], runtime=runtime)
    assert run.err == "system: S\n1 you: a\n1 model: A\n2 you: b\n2 model: B\n"


def test_undo_drops_the_last_exchange(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"), answer("C"))
    run = run_here("chat", lines=["a", "b", "/undo", "c"], runtime=runtime)
    assert said(runtime) == ["u: a", "a: A", "u: c"]
    assert run.err == "note: dropped: b\n"


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("/edit new text", ["u: a", "a: A", "u: new text"]),
        ("/edit 1 new text", ["u: new text"]),
        ("/edit 2 new", ["u: a", "a: A", "u: new"]),
    ],
)
def test_edit_replaces_a_message_and_runs_it_again(run_here, line, want):
    runtime = FakeRuntime(answer("A"), answer("B"), answer("C"), answer("D"))
    run = run_here("chat", lines=["a", "b", line, "d"], runtime=runtime)
    edited = [f"{message['role'][0]}: {message['content']}" for message in runtime.calls[2][0]]
    assert edited == want
    assert said(runtime) == [*want, "a: C", "u: d"]
    assert run.out == "A\nB\nC\nD\n"


def test_retry_asks_the_last_message_again_with_another_seed(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"), answer("C"))
    run_here("chat", "--seed", "3", lines=["a", "/retry", "b"], runtime=runtime)
    assert [call[1].seed for call in runtime.calls] == [3, 4, 4]
    assert runtime.calls[0][0] == runtime.calls[1][0]
    assert said(runtime) == ["u: a", "a: B", "u: b"]


def test_reset_keeps_the_system_message(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"))
    run_here("chat", "--system", "S", lines=["a", "/reset", "b"], runtime=runtime)
    assert said(runtime) == ["s: S", "u: b"]


def test_steps_and_thinking_change_the_turns_that_follow(run_here):
    runtime = FakeRuntime(answer("A"), answer("B"), answer("C"))
    lines = ["a", "/steps 5", "/thinking on", "b", "/thinking off", "c"]
    run_here("chat", "--max-tokens", "9", lines=lines, runtime=runtime)
    options = [call[1] for call in runtime.calls]
    assert options[0] == GenerationOptions(max_tokens=9)
    assert options[1] == GenerationOptions(max_tokens=9, max_denoising_steps=5, thinking=True)
    assert options[2] == GenerationOptions(max_tokens=9, max_denoising_steps=5, thinking=False)


def test_a_history_is_saved_and_loaded_without_thoughts(run_here, tmp_path):
    path = tmp_path / "a chat.json"
    runtime = FakeRuntime(answer("A", thought="Hm"))
    run = run_here("chat", "--system", "S", lines=["a", f"/save {path}"], runtime=runtime)
    assert run.err.endswith(f"note: 1 exchange written to `{path}`\n")
    assert [message["content"] for message in json.loads(path.read_text())] == ["S", "a", "A"]
    runtime = FakeRuntime(answer("B"))
    run_here("chat", lines=[f"/load {path}", "b"], runtime=runtime)
    assert said(runtime) == ["s: S", "u: a", "a: A", "u: b"]


def test_quit_leaves_at_once(run_here):
    run = run_here("chat", lines=["/quit", "a"], runtime=FakeRuntime())
    assert (run.code, run.out, run.err) == (0, "", "")


def test_help_lists_every_command(run_here):
    run = run_here("chat", lines=["/help"], runtime=FakeRuntime())
    assert [line.split()[0] for line in run.err.splitlines()[:-1]] == [
        f"/{name}" for name in COMMANDS
    ]
    assert all(len(line) <= 80 for line in run.err.splitlines())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/unknown x", "there is no command `/unknown`"),
        ("/", "there is no command `/`"),
        ("/edit 7 text", "there is no exchange 7"),
        ("/edit 1", "/edit has no text"),
        ("/edit", "/edit has no text"),
        ("/steps 0", "/steps takes a whole number of 1 or more, not `0`"),
        ("/steps many", "/steps takes a whole number of 1 or more, not `many`"),
        ("/thinking maybe", "/thinking takes on or off, not `maybe`"),
        ("/save", "which file?"),
        ("caf\udce9", "this line is not valid UTF-8: 'caf\\udce9'"),
        ("/load no/such.json", "`no/such.json`: No such file or directory"),
        ("/save no/such.json", "`no/such.json`: No such file or directory"),
    ],
)
def test_a_wrong_command_is_one_line_and_the_chat_goes_on(run_here, line, message):
    runtime = FakeRuntime(answer("A"), answer("B"))
    run = run_here("chat", lines=["a", line, "b"], runtime=runtime)
    assert run.err.splitlines()[0] == f"error: {message}"
    assert said(runtime) == ["u: a", "a: A", "u: b"]
    assert run.code == 0


@pytest.mark.parametrize("line", ["/undo", "/retry", "/edit text"])
def test_commands_that_need_a_history_say_so(run_here, line):
    run = run_here("chat", lines=[line], runtime=FakeRuntime())
    assert run.err == "error: nothing has been said yet\n"


@pytest.mark.parametrize("line", ["b", "/retry", "/edit 1 b"])
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GenerationError("no numbers", hint="h"), "error: no numbers\n\nhint: h\n"),
        (OSError("it broke"), "error: it broke\n"),
        (MemoryError(), "error: out of memory\n"),
        (KeyboardInterrupt(), "\nnote: cancelled; the history is as it was\n"),
    ],
)
def test_a_turn_that_fails_or_is_cancelled_leaves_the_history(run_here, line, failure, message):
    runtime = FakeRuntime(answer("A"), [block("Half"), failure], answer("C"))
    run = run_here("chat", lines=["a", line, "c"], runtime=runtime)
    assert run.out == "A\nHalf\nC\n"
    assert message in run.err
    assert said(runtime) == ["u: a", "a: A", "u: c"]
    assert run.code == 0


def test_an_answer_cut_by_the_budget_says_so_and_joins_the_history(run_here):
    runtime = FakeRuntime(answer("A", reason="length", tokens=3), answer("B"))
    run = run_here("chat", "--max-tokens", "3", lines=["a", "b"], runtime=runtime)
    assert "cut at 3 tokens; --max-tokens allows more" in run.err
    assert said(runtime) == ["u: a", "a: A", "u: b"]


def test_a_closed_pipe_ends_the_chat(run_here):
    runtime = FakeRuntime([BrokenPipeError(32, "Broken pipe")])
    run = run_here("chat", lines=["a", "b"], runtime=runtime)
    assert (run.code, run.err) == (1, "")


def test_every_flag_that_says_how_an_answer_is_written_reaches_the_turns(run_here):
    runtime = FakeRuntime(answer("A"))
    run_here("chat", "--mode", "ar", "--top-k", "5", "--seed", "3", lines=["a"], runtime=runtime)
    assert [options for _, options in runtime.calls] == [
        GenerationOptions(mode="ar", top_k=5, seed=3)
    ]


def test_there_is_no_canvas_to_watch_from_left_to_right(run_here):
    run = run_here("chat", "--mode", "ar", "--watch", lines=["a"])
    assert run.code == 1
    assert run.err.startswith("error: --watch is given and --mode is 'ar'")
