"""`dgemma-mlx parity`: recording, checking and comparing from the command line."""

import json

import pytest

from mlx_diffusiongemma.parity.trace_file import read_trace


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
        (["record", "demo"], "there is no --out"),
        (["record", "demo", "-o", "x", "--suite", "huge"], "there is no suite 'huge'"),
        (["record", "demo", "-o", "x", "--backend", "jax"], "backend is 'jax'"),
        (["record", "demo", "-o", "x", "--device", "tpu"], "device is 'tpu'"),
        (
            ["record", "demo", "-o", "x", "--backend", "mlx", "--device", "cpu"],
            "device is 'cpu' with the backend mlx",
        ),
        (["record", "demo", "-o", "x", "--like", "missing"], "`missing`: No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run_here, monkeypatch, tmp_path, arguments, error):
    monkeypatch.chdir(tmp_path)
    run = run_here("parity", *arguments)
    assert run.code == 1 and run.out == ""
    assert run.err.startswith(f"error: {error}")
    assert not list(tmp_path.iterdir())


def test_without_torch_the_reference_says_what_to_install(run_here, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.delitem(
        __import__("sys").modules, "mlx_diffusiongemma.parity.reference", raising=False
    )
    run = run_here("parity", "record", "demo", "-o", str(tmp_path / "x"))
    assert run.code == 1 and "the reference cannot be imported" in run.err
    assert "mlx-diffusiongemma[parity]" in run.err and "--backend mlx" in run.err
