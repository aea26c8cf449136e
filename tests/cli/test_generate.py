"""`generate` with scripted events: what goes to which stream, and what is asked of the runtime."""

import io
import json
import sys
from dataclasses import fields

import pytest
from fake_runtime import FakeRuntime, answer, block, finished

from mlx_diffusiongemma.cli.render import Transcript
from mlx_diffusiongemma.errors import ConfigError, GenerationError
from mlx_diffusiongemma.events import PromptProcessed, TokenWritten
from mlx_diffusiongemma.options import GenerationOptions

AR = ["--mode", "ar"]
FLAGS = {
    "preset": (["--preset", "fast"], "fast"),
    "stop_rule": (["--stop-rule", "plateau"], "plateau"),
    "min_denoising_steps": (["--min-steps", "3"], 3),
    "sampler": (["--sampler", "confidence"], "confidence"),
    "accept_probability": (["--accept-probability", "0.8"], 0.8),
    "keep_probability": (["--keep-probability", "0.2"], 0.2),
    "canvas_length": (["--canvas-length", "16"], 16),
    "shrink_canvas": (["--shrink-canvas"], True),
    "fast_self_conditioning": (["--fast-sc"], True),
    "deadline_ms": (["--deadline-ms", "250"], 250.0),
    "mode": (AR, "ar"),
    "temperature": ([*AR, "--temperature", "0.7"], 0.7),
    "top_p": ([*AR, "--top-p", "0.9"], 0.9),
    "top_k": ([*AR, "--top-k", "40"], 40),
    "min_p": ([*AR, "--min-p", "0.1"], 0.1),
    "max_tokens": (["--max-tokens", "9"], 9),
    "max_denoising_steps": (["--steps", "7"], 7),
    "entropy_bound": (["--entropy-bound", "0.5"], 0.5),
    "t_min": (["--t-min", "0.1"], 0.1),
    "t_max": (["--t-max", "2"], 2.0),
    "stability_threshold": (["--stability-threshold", "0"], 0),
    "confidence_threshold": (["--confidence-threshold", "0.01"], 0.01),
    "seed": (["--seed", "3"], 3),
    "stop": (["--stop", "a", "--stop", "b"], ("a", "b")),
    "thinking": (["--no-thinking"], False),
    "chat_template": (["--no-chat-template"], False),
    "retry_empty": (["--no-retry-empty"], False),
}


def test_every_option_of_a_generation_has_a_flag():
    assert FLAGS.keys() | {"constraint"} == {field.name for field in fields(GenerationOptions)}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_changes_its_option_alone(run_here, name):
    flags, value = FLAGS[name]
    runtime = FakeRuntime(answer("Hi"))
    assert run_here("generate", "Hello", *flags, runtime=runtime).code == 0
    needed = {"mode": "ar"} if "--mode" in flags else {}
    assert runtime.calls == [("Hello", GenerationOptions(**needed | {name: value}))]


def test_without_flags_nothing_is_asked(run_here):
    run_here("generate", "Hello", runtime=(runtime := FakeRuntime(answer("Hi"))))
    assert runtime.calls == [("Hello", GenerationOptions())]


def test_tokens_that_come_one_by_one_are_written_as_they_come(run_here):
    tokens = [TokenWritten(n, (n,), None, text=text) for n, text in enumerate(("He", "llo"))]
    events = [PromptProcessed(3), *tokens, finished("Hello")]
    run = run_here("generate", "Hello", "--mode", "ar", runtime=FakeRuntime(events))
    assert (run.code, run.out, run.err) == (0, "Hello\n", "")


def test_there_is_no_canvas_to_watch_from_left_to_right(run_here):
    run = run_here("generate", "Hello", "--mode", "ar", "--watch")
    assert run.code == 1
    assert run.err.startswith("error: --watch is given and --mode is 'ar'")


def test_a_setting_of_the_other_mode_names_its_flag(run_here):
    run = run_here("generate", "Hello", "--top-k", "5")
    assert run.code == 1
    assert "--top-k is 5 and --mode is 'diffusion'" in run.err
    assert "only --mode ar or auto reads --top-k" in " ".join(run.err.split()).replace("'", "")


def test_a_system_message_makes_messages(run_here):
    runtime = FakeRuntime(answer("Hi"))
    run_here("generate", "Hello", "--system", "Be brief.", runtime=runtime)
    assert runtime.calls[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


@pytest.mark.parametrize(
    ("texts", "out"), [(("Hello, ", "you"), "Hello, you\n"), (("a\n",), "a\n")]
)
def test_the_answer_alone_goes_to_standard_output_and_ends_with_a_newline(run_here, texts, out):
    run = run_here("generate", "Hello", runtime=FakeRuntime(answer(*texts)))
    assert (run.code, run.out, run.err) == (0, out, "")


def test_an_empty_answer_is_an_empty_line(run_here):
    assert run_here("generate", "Hello", runtime=FakeRuntime(answer(""))).out == "\n"


def test_a_thought_goes_to_standard_error(run_here):
    run = run_here("generate", "Hello", runtime=FakeRuntime(answer("Hi", thought="[b]Hm[/b]")))
    assert (run.out, run.err) == ("Hi\n", "[b]Hm[/b]\n")


def test_json_is_one_object_with_the_result(run_here):
    events = answer("Hé\n", thought="Hm")
    run = run_here("generate", "Hello", "--json", runtime=FakeRuntime(events))
    assert json.loads(run.out) == json.loads(json.dumps(events[-1].result.to_dict()))
    assert run.out.count("\n") == 1 and "Hé" in run.out
    assert run.err == ""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_answer_cut_by_the_budget_says_so(run_here, flags):
    events = answer("Hi", reason="length", tokens=5)
    run = run_here("generate", "Hello", "--max-tokens", "5", *flags, runtime=FakeRuntime(events))
    assert run.err == "note: the answer was cut at 5 tokens; --max-tokens allows more\n"
    assert run.code == 0


def test_an_answer_cut_by_the_context_says_so(run_here):
    events = answer("Hi", reason="length", tokens=5, cut_by="context")
    run = run_here("generate", "x", runtime=FakeRuntime(events))
    assert run.err == "note: the answer was cut at 5 tokens: the context is full\n"


def test_statistics_go_to_standard_error(run_here):
    run = run_here("generate", "Hello", "--stats", runtime=FakeRuntime(answer("Hi")))
    assert run.out == "Hi\n"
    assert run.err.splitlines() == [
        "prompt           7 tokens in 0.50 s (14 tokens/s)",
        "answer           3 tokens in 0.12 s (24 tokens/s)",
        "canvases         2 in 5 steps (2 + 3), 1 converged early",
        "time             prefill 80%, denoising 16%, commit 4%",
        "tokens per step  0.60",
        "model load       0.25 s",
        "peak memory      12.3 MB",
        "seed             11",
        "finish reason    stop",
    ]


def test_statistics_name_what_cut_the_answer(run_here):
    runtime = FakeRuntime(answer("Hi", reason="length", tokens=3))
    run = run_here("generate", "Hello", "--stats", "--max-tokens", "3", runtime=runtime)
    assert run.err.splitlines()[-1] == "finish reason    length (max tokens)"


def test_a_report_says_what_the_answer_cost_and_not_what_it_says(run_here, tmp_path):
    path = tmp_path / "report.json"
    runtime = FakeRuntime(answer("Hi there"))
    run = run_here("generate", "Hello", "-m", "demo", "--report", str(path), runtime=runtime)
    assert (run.code, run.out, run.err) == (0, "Hi there\n", "")
    report = json.loads(path.read_text())
    assert report["model"] == "demo" and report["finish_reason"] == "stop"
    assert report["denoising_steps"] == [2, 3] and report["converged"] == [True, False]
    assert report["time_shares"] == {"prefill": 0.8, "denoising": 0.16, "commit": 0.04}
    assert {"cached_tokens", "reread_tokens", "truncated_by", "seed", "version"} <= set(report)
    assert "Hi there" not in path.read_text()


def test_watching_without_a_terminal_is_one_line_for_each_step(run_here):
    run = run_here("generate", "Hello", "--watch", runtime=FakeRuntime(answer("Hi")))
    assert run.out == "Hi\n"
    first, second = run.err.splitlines()
    assert first.startswith("canvas 1  step 1/4  accepted 33%  entropy 0.500")
    assert first.endswith("|[Hello]· ·····|") and second.endswith("|Hello, world|")


def test_watching_does_not_change_what_is_asked(run_here):
    runtime = FakeRuntime(answer("Hi"), answer("Hi"))
    run_here("generate", "Hello", runtime=runtime)
    run_here("generate", "Hello", "--watch", runtime=runtime)
    assert runtime.calls[0] == runtime.calls[1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GenerationError("the logits are [nan]", hint="try [bold]"), "the logits are [nan]"),
        (GenerationError("x" * 300, hint="try [bold]"), "x" * 300),
    ],
)
def test_an_error_is_one_line_and_a_hint_after_what_was_written(run_here, error, message):
    run = run_here("generate", "Hello", runtime=FakeRuntime([block("Once "), error]))
    assert (run.code, run.out) == (1, "Once \n")
    assert run.err == f"error: {message}\n\nhint: try [bold]\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "a/b"), "error: `a/b`: Permission denied\n"),
        (OSError("it broke"), "error: it broke\n"),
        (MemoryError(), "error: out of memory\n\nhint: "),
    ],
)
def test_errors_of_the_system_are_one_line_too(run_here, error, message):
    run = run_here("generate", "Hello", runtime=FakeRuntime([error]))
    assert run.code == 1 and run.err.startswith(message)


def test_a_bug_is_not_dressed_up_as_a_message(monkeypatch, run_here):
    with pytest.raises(ZeroDivisionError):
        run_here("generate", "Hello", runtime=FakeRuntime([ZeroDivisionError()]))


def test_ctrl_c_keeps_what_was_written_and_exits_130(run_here):
    run = run_here("generate", "Hello", runtime=FakeRuntime([block("Once "), KeyboardInterrupt()]))
    assert (run.code, run.out, run.err) == (130, "Once \n", "")


def test_a_closed_pipe_ends_quietly(run_here):
    run = run_here("generate", "Hello", runtime=FakeRuntime([BrokenPipeError(32, "Broken pipe")]))
    assert (run.code, run.out, run.err) == (1, "", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["", "--steps", "3"], "PROMPT is empty"),
        ([" \n"], "PROMPT is empty"),
        (["Hi \udcff"], "PROMPT is not valid UTF-8: 'Hi \\udcff'"),
        (["Hi", "--system", "\udcff"], "--system is not valid UTF-8: '\\udcff'"),
        (["Hi", "--system", "S", "--no-chat-template"], "--system is given with"),
        (["Hi", "--steps", "0"], "--steps is 0"),
        (["Hi", "--t-min", "nan"], "--t-min is nan"),
        (["Hi", "--t-min", "2", "--t-max", "1"], "--t-min is 2.0 and --t-max is 1.0"),
        (["Hi", "--max-tokens", "0"], "--max-tokens is 0"),
        (["Hi", "--seed", "-1"], "--seed is -1"),
        (["Hi", "--stop", ""], "--stop is ['']"),
    ],
)
def test_a_bad_value_is_named_before_a_model_is_loaded(run_here, args, message):
    run = run_here("generate", *args)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate"], "missing argument 'PROMPT'"),
        (["generate", "a", "b"], "got unexpected extra argument"),
        (["generate", "a", "--steps", "many"], "invalid value for '--steps': 'many' is not an"),
        (["generate", "a", "--t-min", "low"], "invalid value for '--t-min': 'low' is not a number"),
        (["generate", "a", "--step", "3"], "no such option: --step"),
        (["generat", "a"], "no such command 'generat'"),
    ],
)
def test_a_wrong_command_line_is_one_line_a_hint_and_exit_code_2(run_here, args, message):
    run = run_here(*args)
    assert (run.code, run.out) == (2, "")
    lines = run.err.splitlines()
    assert lines[0].startswith(f"error: {message}") and lines[1] == ""
    assert lines[2].startswith("hint: `dgemma-mlx") and len(lines) == 3


def test_at_a_terminal_the_channels_take_turns_on_lines_of_their_own(run_here, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    events = [block("Once", thought="Hm"), block(" more", thought="Hm?"), finished("Once more")]
    run = run_here("generate", "Hello", runtime=FakeRuntime(events))
    assert (run.out, run.err) == ("Once more\n", "Hm\n\nHm?\n")


def test_elsewhere_a_later_thought_leaves_no_empty_line(run_here):
    events = [block("Once", thought="Hm"), block(" more", thought="Hm?"), finished("Once more")]
    run = run_here("generate", "Hello", runtime=FakeRuntime(events))
    assert (run.out, run.err) == ("Once more\n", "Hm\nHm?\n")


def test_an_empty_answer_is_said(run_here):
    run = run_here("generate", "Hello", runtime=FakeRuntime([block(""), finished("")]))
    assert run.out == "\n"
    assert run.err == "note: the model ended its answer at once\n"


def test_a_block_is_written_at_once(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    Transcript().add("Once", "")
    assert written.getvalue() == b"Once"


def test_a_hint_names_the_flag(run_here):
    run = run_here("generate", "Hello", "--steps", "0")
    assert run.err == "error: --steps is 0\n\nhint: --steps must be an integer of 1 or more\n"


def test_config_errors_of_the_checkpoint_are_shown(run_here):
    error = ConfigError("t_min is 2.0 and t_max is 0.8", hint="t_min must be below t_max")
    run = run_here("generate", "Hello", "--t-min", "2", runtime=FakeRuntime([error]))
    assert run.err == f"error: {error}\n\nhint: {error.hint}\n"
