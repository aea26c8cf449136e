"""`dgemma-mlx parity`: recording, checking and comparing from the command line."""

import json
import re
from pathlib import Path

import pytest

from mlx_diffusiongemma.model import attention
from mlx_diffusiongemma.parity.trace_file import read_trace
from mlx_diffusiongemma.parity.verdict import LIMITS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parity.md"
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
DEMO_TRACE = str(FIXTURES / "traces" / "demo.safetensors")


def test_the_released_model_is_sized_without_weights(run_here):
    run = run_here("parity", "record", "--estimate")
    assert run.out.startswith("at most ") and " MB for google/diffusiongemma-26B-A4B-it" in run.out
    fields = json.loads(run_here("parity", "record", "--estimate", "--json").out)
    assert fields["bytes"] == sum(fields["parts"].values()) <= 200e6
    small = json.loads(run_here("parity", "record", "--estimate", "--suite", "small", "--json").out)
    assert small["bytes"] < fields["bytes"]


def test_a_model_is_sized_from_its_config(run_here):
    fields = json.loads(run_here("parity", "record", "demo", "--estimate", "--json").out)
    assert fields["model"] == "demo" and 0 < fields["bytes"] < 10e6


def test_our_own_model_is_recorded(run_here, tmp_path):
    out = str(tmp_path / "demo.trace")
    run = run_here("parity", "record", "demo", "--backend", "mlx", "--suite", "small", "-o", out)
    assert run.code == 0 and run.out == ""
    assert "wrote demo.trace: " in run.err and "float32 on cpu" in run.err
    manifest = read_trace(tmp_path / "demo.trace").manifest
    assert manifest.model.name == "demo" and manifest.producer.backend == "mlx"
    assert [case.text for case in manifest.generations] == ["Tell me a story about a fox."]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["record"], "there is no MODEL"),
        (["record", "demo", "-o", "x", "--dtype", "int8"], "dtype is 'int8'"),
        (["record", "demo"], "there is no --out"),
        (["record", "demo", "-o", "x", "--suite", "huge"], "there is no suite 'huge'"),
        (["record", "demo", "-o", "x", "--backend", "jax"], "backend is 'jax'"),
        (["record", "demo", "-o", "x", "--device", "tpu"], "device is 'tpu'"),
        (
            ["record", "demo", "-o", "x", "--backend", "mlx", "--device", "cpu"],
            "device is 'cpu' with the backend mlx",
        ),
        (["record", "demo", "-o", "x", "--like", "missing"], "`missing`: No such file"),
        (["record", "demo", "-o", ""], "`.` is a folder"),
        (["record", "demo", "-o", "missing/x"], "there is no folder `missing`"),
        (["record", "", "-o", "x"], "there is no folder ``"),
        (["record", "", "--estimate"], "there is no folder ``"),
        (["check", DEMO_TRACE, "--model", ""], "there is no folder ``"),
        (["check", DEMO_TRACE, "--model", "demo", "--html", "missing/x"], "there is no folder `mi"),
        (["compare", DEMO_TRACE, DEMO_TRACE, "--html", "."], "`.` is a folder"),
        (["check", "", "--model", "demo"], "`.`: Is a directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run_here, monkeypatch, tmp_path, arguments, error):
    monkeypatch.chdir(tmp_path)
    run = run_here("parity", *arguments)
    assert run.code == 1 and run.out == ""
    assert run.err.startswith(f"error: {error}")
    assert not list(tmp_path.iterdir())


def test_without_a_command_the_error_is_one_line(run_here):
    run = run_here("parity")
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines()[0] == "error: missing command"


def test_without_torch_the_reference_says_what_to_install(run_here, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.delitem(
        __import__("sys").modules, "mlx_diffusiongemma.parity.reference", raising=False
    )
    run = run_here("parity", "record", "demo", "-o", str(tmp_path / "x"))
    assert run.code == 1 and "the reference cannot be imported" in run.err
    assert "mlx-diffusiongemma[parity]" in run.err and "--backend mlx" in run.err


def test_the_demo_passes_the_trace_that_transformers_recorded(run_here):
    run = run_here("parity", "check", DEMO_TRACE, "--model", "demo")
    assert run.code == 0
    lines = run.out.splitlines()
    assert lines[0] == "reference  demo, transformers in float32 on cpu"
    assert lines[-1] == "PASS as fp32"
    assert "replay     story: steps 13 6 7, every decision is the same" in lines


def test_json_and_a_verdict_by_another_precision(run_here):
    arguments = ("parity", "check", DEMO_TRACE, "--model", "demo", "--json")
    fields = json.loads(run_here(*arguments, "--precision", "bf16").out)
    assert (fields["passed"], fields["precision"], fields["fault"]) == (True, "bf16", None)
    assert fields["same_weights"] and fields["other"]["producer"]["backend"] == "mlx"


def test_a_model_that_computes_something_else_fails_with_code_1(run_here, tmp_path, monkeypatch):
    rope = attention.rotary_frequencies
    monkeypatch.setattr(attention, "rotary_frequencies", lambda layer: rope(layer) * 1.01)
    run = run_here("parity", "check", DEMO_TRACE, "--model", "demo")
    assert run.code == 1
    fault, verdict = run.out.splitlines()[-2:]
    assert fault.startswith("first fault: layer 0, queries (prompt of long): error jumps from ")
    assert verdict == "FAIL as fp32"


def test_the_page_is_written_beside_the_lines(run_here, tmp_path):
    page = tmp_path / "report.html"
    run = run_here("parity", "compare", DEMO_TRACE, DEMO_TRACE, "--html", str(page))
    assert run.out.endswith("PASS as fp32\n")
    assert page.read_text().count("<svg") == 4


def test_two_traces_are_compared(run_here, tmp_path):
    out = str(tmp_path / "ours")
    made = ("parity", "record", "demo", "--backend", "mlx", "-o", out, "--like", DEMO_TRACE)
    assert run_here(*made).code == 0
    run = run_here("parity", "compare", DEMO_TRACE, out)
    assert (run.code, run.out.splitlines()[-1]) == (0, "PASS as fp32")


def test_a_trace_of_another_model_is_refused_before_the_model_is_loaded(run_here):
    trace = str(FIXTURES / "traces" / "small_window.safetensors")
    run = run_here("parity", "check", trace, "--model", "demo")
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: the trace is of another model: here vocab_size is 1024")
    run = run_here("parity", "check", __file__, "--model", "demo")
    assert run.code == 1 and "is no trace, or it was cut short" in run.err


def test_the_example_of_the_page_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, "parity.md", "exec"), {})
    assert capsys.readouterr().out == "fp32 True None\n"


def test_the_page_says_the_limits_and_the_size_that_are_true(run_here):
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([\d.]+), .*? \| ([\d.]+) % \| ([\d.]+) \| ([\d.]+) % ",
        PAGE.read_text(),
        re.M,
    )
    assert [row[0] for row in rows] == list(LIMITS)
    for name, *numbers in rows:
        limits = LIMITS[name]
        shares = (limits.operation, 100 * limits.routing, limits.kl, 100 * limits.agreement)
        assert [float(number) for number in numbers] == pytest.approx(shares)
    (size,) = re.findall(r"at most (\d+) MB", PAGE.read_text())
    fields = json.loads(run_here("parity", "record", "--estimate", "--json").out)
    assert round(fields["bytes"] / 1e6) == int(size)
