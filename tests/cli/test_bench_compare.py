"""`bench compare` and `bench soak`: what they write where, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_diffusiongemma.bench import process

FAKE_PEER = Path(__file__).resolve().parents[1] / "fake_mlx_vlm"


def test_a_small_comparison_of_the_demo_with_a_scripted_peer(run_here, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKE_PEER))
    out = tmp_path / "compare.json"
    given = ("--task", "add", "--count", "2", "--peer", sys.executable, "--out", str(out))
    run = run_here("bench", "compare", *given, fake=False)
    assert run.code == 0, run.err
    table = [line.split("|") for line in run.out.splitlines() if line.startswith("| ")][1:]
    report = json.loads(out.read_text())
    ours, written, same, theirs = (report["answers"][row["name"]] for row in report["rows"])
    assert report["rows"][0]["right"] == 2, "the demo adds small numbers"
    assert report["rows"][2]["right"] == 0, "the scripted peer repeats the prompt"
    assert report["rows"][0]["steps_per_canvas"] < 12, "text converges long before the last step"
    assert ours[0]["canvases"] == 1 and written[0]["canvases"] == 0
    assert [answer["passes"] for answer in same] == [6, 6], "its sampler was asked for"
    assert [answer["passes"] for answer in theirs] == [4, 4], "its own defaults"
    assert all(answer["peak_bytes"] > 0 for answer in ours + written)
    assert report["workers"]["mlx-vlm"]["dtype"] == report["workers"]["mlx-diffusiongemma"]["dtype"]
    assert len(report["ratios"]) == 3 and len(table) == 5
    assert "note: mlx-vlm" in run.err


def test_without_a_peer_a_comparison_says_so(run_here, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("2 + 2 =\n\nWho are you?\n")
    run = run_here("bench", "compare", "--prompts", str(prompts), "--max-tokens", "8", fake=False)
    assert run.code == 0, run.err
    assert run.out.count("not checked") == 2
    assert "--peer PYTHON names an interpreter" in run.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "chess"], "--task is 'chess'"),
        (["--out", "nowhere/compare.json"], "`nowhere` is not a folder"),
        (["--prompts", "/dev/null"], "`/dev/null` holds no prompts"),
        (["--peer", "/nowhere/python"], "`/nowhere/python` does not start"),
    ],
)
def test_what_cannot_be_compared_is_refused(run_here, flags, message):
    run = run_here("bench", "compare", *flags, fake=False)
    assert run.code == 1
    assert message in run.err


def test_a_peer_that_does_not_start_leaves_no_worker_behind(run_here, monkeypatch):
    started, popen = [], subprocess.Popen

    def remembered(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(process.subprocess, "Popen", remembered)
    run_here("bench", "compare", "--peer", "/nowhere/python", fake=False)
    assert len(started) == 1 and started[0].poll() is not None


@pytest.mark.parametrize("requests", ["90", "110"])
def test_a_soak_has_whole_rounds_and_two_ends(run_here, requests):
    run = run_here("bench", "soak", "--requests", requests, fake=False)
    assert run.code == 1
    assert "a multiple of 25, 100 or more" in run.err
