"""The command as a person meets it: real processes, the demo model, pipes and terminals."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from running import COMMAND, SECONDS, Terminal, run_command

from mlx_diffusiongemma.version import __version__

DEMO = ("--model", "demo", "--seed", "1")
STORY = "Tell me a story about a frog."
# Canvases of the demo model that never agree with themselves this often: minutes of work.
ENDLESS = ("--steps", "1000000", "--stability-threshold", "1000000")
HEAVY = ("mlx.core", "mlx_lm", "transformers", "numpy", "huggingface_hub")


@pytest.mark.parametrize("command", ["", "generate", "chat", "info", "parity", "parity check"])
def test_help_needs_no_heavy_import(command):
    code = f"""
import sys
from mlx_diffusiongemma.cli.app import main
sys.argv = ["dgemma-mlx", *{command.split()!r}, "--help"]
try:
    main()
finally:
    print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "[]\n")
    assert result.stdout.startswith(f"Usage: dgemma-mlx {command}".rstrip())
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_takes_little_more_than_that_of_a_command_that_does_nothing():
    """Processor time, beside that of another process in turns: machines differ and may be busy."""
    nothing = """
import typer
app = typer.Typer()
@app.command()
def nothing(much: int = 1): "Do nothing."
@app.command()
def more(much: int = 1): "Do nothing more."
app()
"""

    def seconds(run, *arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    small = [sys.executable, "-c", nothing, "--help"]
    both = [(seconds(run_command, "--help"), seconds(subprocess.run, small)) for _ in range(5)]
    own, other = map(min, zip(*both, strict=True))
    assert own < 1.8 * other, both


def test_version():
    run = run_command("--version")
    assert (run.code, run.out, run.err) == (0, f"dgemma-mlx {__version__}\n", "")


def test_without_a_command_the_help_is_shown_on_standard_error():
    run = run_command()
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("Usage: dgemma-mlx")


def test_standard_output_holds_the_answer_and_nothing_else_is_said():
    run = run_command("generate", STORY, *DEMO)
    assert (run.code, run.err) == (0, "")
    assert len(run.out.split()) > 3 and run.out.endswith("\n") and "\x1b" not in run.out


def test_a_chat_through_a_pipe():
    run = run_command("chat", *DEMO, stdin=b"Hello\n/history\n/quit\n")
    assert run.code == 0
    assert run.err == f"1 you: Hello\n1 model: {run.out}"


def test_standard_input_that_is_no_text_or_closed():
    run = run_command("generate", "-", *DEMO, stdin=b"caf\xe9")
    assert (run.code, run.out) == (1, "")
    assert run.err == "error: standard input is not valid UTF-8: 'caf\\udce9'\n"
    long = run_command("generate", "-", *DEMO, stdin=b"\xff" * 100_000)
    assert len(long.err) < 1000 and long.err.startswith("error: standard input is not valid UTF-8")
    closed = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *COMMAND, "generate", "-"], capture_output=True, text=True
    )
    assert closed.stderr.startswith("error: standard input is empty")


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["generate", STORY, *DEMO]])
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(args):
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [*COMMAND, *args],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        timeout=SECONDS,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_exits_130_and_a_kill_143_without_a_word(number, code):
    process = subprocess.Popen(
        [*COMMAND, "generate", STORY, *DEMO, *ENDLESS, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr.readline().startswith(b"canvas 1  step 1/")
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (code, b"")
    assert all(line.startswith(b"canvas 1  step") for line in err.splitlines())


SWALLOWS_CTRL_C = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except BaseException:
    pass
raise ImportError("went on after Ctrl-C")
"""


@pytest.mark.parametrize("library", ["typer", "mlx_lm"])
def test_ctrl_c_while_a_library_is_imported_that_swallows_it(library, tmp_path):
    tmp_path.joinpath(f"{library}.py").write_text(SWALLOWS_CTRL_C)
    run = run_command("generate", STORY, *DEMO, PYTHONPATH=str(tmp_path))
    assert (run.code, run.out, run.err) == (130, "", "")


def test_ctrl_c_in_a_chat_cancels_the_turn_alone_and_twice_at_the_prompt_leaves():
    chat = Terminal("chat", *DEMO, *ENDLESS, "--watch")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("step [2-9]")
    chat.type("typed ahead")
    chat.wait_for("step [0-9]")
    chat.type("\x03")
    after = chat.wait_for("\n> ")
    assert "note\x1b[0m: cancelled; the history is as it was" in after
    chat.type("/history\n")
    assert "nothing has been said yet" in chat.wait_for("\n> ")
    assert "typed ahead" not in chat.screen
    chat.type("half a li")
    chat.interrupt()
    assert "Ctrl-C again, Ctrl-D or /quit leaves" in chat.wait_for("\n> ")
    chat.type("/undo\n")
    assert "nothing has been said yet" in chat.wait_for("\n> ")
    chat.interrupt()
    assert "Ctrl-C again, Ctrl-D or /quit leaves" in chat.wait_for("\n> ")
    chat.interrupt()
    assert chat.end() == 0
    assert "Traceback" not in chat.screen


def test_a_long_prompt_says_that_it_is_read_and_ctrl_c_leaves_it():
    """With 3,800 tokens that takes seconds; a chunk of 256 of them does not."""
    prompt = "The sky is blue. " * 760
    terminal = Terminal("generate", prompt, *DEMO)
    terminal.wait_for("reading the prompt")
    terminal.type("\x03")
    started = time.monotonic()
    assert terminal.end() == 130
    assert time.monotonic() - started < 5
    assert terminal.screen.rindex("\x1b[?25h") > terminal.screen.rindex("\x1b[?25l"), "cursor lost"
    assert "Traceback" not in terminal.screen


def test_colours_appear_at_a_terminal_unless_no_color_is_set():
    for environment, colour in ({}, True), ({"NO_COLOR": "1"}, False):
        terminal = Terminal("generate", "Hi", "--model", "foo", **environment)
        assert terminal.end() == 1
        assert "error" in terminal.screen
        assert ("\x1b[1;31m" in terminal.screen) is colour
        assert ("\x1b[36m" in terminal.screen) is colour


def test_the_live_canvas_leaves_only_the_answer():
    terminal = Terminal("generate", "Hello", *DEMO, "--watch")
    assert terminal.end() == 0
    assert "canvas 1" in terminal.screen
    last = terminal.screen.rsplit("\x1b[2K", 1)[1]
    assert last.strip() and "canvas" not in last
