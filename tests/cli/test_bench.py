"""`bench sweep`: what it writes where, and what it refuses before any work."""

import json

import mlx.core as mx
import pytest


def test_a_small_sweep_of_the_demo(run_here, tmp_path):
    out = tmp_path / "sweep.json"
    given = ("--steps", "1,4", "--presets", "--count", "2", "--task", "add", "--out", str(out))
    run = run_here("bench", "sweep", *given, fake=False)
    assert (run.code, run.err) == (0, "")
    names = [line.split("|")[1].strip() for line in run.out.splitlines()[2:]]
    assert names == ["1 step", "4 steps", "quality", "balanced", "fast", "left to right"]
    report = json.loads(out.read_text())
    assert [point["name"] for point in report["points"]] == names
    assert (report["model"], report["task"], report["seed"]) == ("demo", "add", 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "1,two"], "--steps is '1,two'"),
        (["--steps", "0"], "max_denoising_steps is 0"),
        (["--task", "chess"], "--task is 'chess'"),
        (["--out", "nowhere/sweep.json"], "`nowhere` is not a folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(run_here, flags, message):
    run = run_here("bench", "sweep", *flags, "--count", "1", fake=False)
    assert run.code == 1
    assert message in run.err


def test_the_ledger_of_a_step(run_here, tmp_path):
    out = tmp_path / "ledger.json"
    run = run_here("bench", "ledger", "--context", "50", "--out", str(out), fake=False)
    assert (run.code, run.err) == (0, "")
    report = json.loads(out.read_text())
    assert report["about"] == {"context": 50, "recipe": "mixed-4-8"}
    step = report["mlx-diffusiongemma"]["step"]
    assert run.out.splitlines()[-1].split()[:2] == ["step", str(step["launches"])]


def test_fast_self_conditioning_is_counted_beside_the_whole(run_here):
    run = run_here("bench", "ledger", "--context", "50", "--fast-sc", fake=False)
    outside = [line.split() for line in run.out.splitlines() if "outside" in line]
    written = [float(line[3]) for line in outside]
    assert len(written) == 4
    assert written[1] < written[2] < written[0] < written[3]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--recipe", "3bit"], "there is no recipe '3bit'"),
        (["--peer", "no-such-python"], "`no-such-python` cannot count mlx-vlm"),
        (["--out", "nowhere/ledger.json"], "`nowhere` is not a folder"),
    ],
)
def test_what_cannot_be_counted_is_refused(run_here, flags, message):
    run = run_here("bench", "ledger", *flags, fake=False)
    assert run.code == 1
    assert message in run.err


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a Metal GPU")
def test_without_metal_there_are_no_kernels_to_time(run_here):
    run = run_here("bench", "kernels", fake=False)
    assert (run.code, run.out) == (0, "")
    assert "no kernels to time" in run.err and run.err.count("\n") == 1
