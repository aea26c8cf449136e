"""`dgemma-mlx generate --batch-file`: a file of prompts answered into another one."""

import json
import os
import random
import signal
import subprocess
import time

import pytest
from running import COMMAND, run_command

from mlx_diffusiongemma.cli.batch_flags import job_of

STORY = "Tell me a story about a {}."


@pytest.fixture
def prompts(tmp_path):
    def write(*lines):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


def answers_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(answer):
    return {name: value for name, value in answer.items() if name != "stats"}


def job(prompts, out, *more):
    files = ("--batch-file", str(prompts), "--out", str(out))
    return ("generate", "--model", "demo", *files, "--steps", "4", "--seed", "1", *more)


def test_a_file_of_prompts_is_answered_in_order(prompts, tmp_path):
    path = prompts({"prompt": "2 + 2 =", "id": "sum"}, {"prompt": ""}, {"prompt": "Hello"})
    run = run_command(*job(path, tmp_path / "out", "--rows", "2"))
    assert run.code == 1 and run.out == ""
    assert run.err.splitlines()[-1] == f"note: 1 of 3 failed: `{path}` line 2"
    answers = answers_in(tmp_path / "out")
    assert [answer["line"] for answer in answers] == [1, 2, 3]
    assert answers[0]["id"] == "sum" and answers[0]["text"] == "2 + 2 = 4"
    assert "empty" in answers[1]["error"] or "no" in answers[1]["error"]
    alone = run_command(
        "generate", "--model", "demo", "--steps", "4", "--seed", "1", "--json", "Hello"
    )
    want = without_times(json.loads(alone.out))
    assert {name: answers[2][name] for name in want} == want

    again = run_command(*job(path, tmp_path / "out", "--rows", "2"))
    assert again.code == 1
    assert f"note: `{tmp_path / 'out'}` has 3 of 3 answers, which stay" in again.err
    assert answers_in(tmp_path / "out") == answers


def test_ctrl_c_says_how_far_it_is_and_the_job_goes_on(prompts, tmp_path):
    path = prompts(*({"prompt": STORY.format("fox"), "seed": n} for n in range(40)))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*COMMAND, *job(path, out, "--max-tokens", "20")], stderr=subprocess.PIPE, text=True
    )
    while not (out.exists() and out.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    done = len(answers_in(out))
    assert process.returncode == 130 and 0 < done < 40
    assert said.endswith(f"note: {done} of 40 are written; the same command goes on there\n")


def killed_after(arguments, seconds):
    """Run the command and kill it; True when it came to its end before."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def kill_until_done(path, out, waits):
    kills = 0
    for seconds in waits:
        if killed_after(job(path, out), seconds):
            return kills
        kills += out.exists() and out.stat().st_size > 0
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_thousand_rows_killed_at_random_lose_and_double_nothing(prompts, tmp_path):
    rng = random.Random(7)
    animals = ("frog", "dog", "fox", "bear", "owl", "cat")
    lines = [
        {"prompt": f"{rng.randint(2, 9)} + {rng.randint(2, 9)} =", "id": n, "seed": n}
        if rng.random() < 0.8
        else {"prompt": STORY.format(rng.choice(animals)), "id": n, "seed": n, "max_tokens": 20}
        for n in range(1000)
    ]
    path = prompts(*lines)
    started = time.monotonic()
    assert run_command(*job(path, tmp_path / "whole")).code == 0
    seconds = time.monotonic() - started
    waits = [4 + rng.random() * seconds / 6 for _ in range(60)]
    kills = kill_until_done(path, tmp_path / "killed", waits)
    print(f"1,000 rows in {seconds:.0f} s; {kills} kills with answers on disk")
    assert kills >= 3
    whole, killed = answers_in(tmp_path / "whole"), answers_in(tmp_path / "killed")
    assert [answer["id"] for answer in killed] == list(range(1000))
    assert list(map(without_times, killed)) == list(map(without_times, whole))


# Flags ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "a"], "--out is given without --batch-file"),
        (["--rows", "2"], "--rows is given without --batch-file"),
        (["--batch-file", "p"], "--batch-file is given without --out"),
        (["--batch-file", "p", "--out", "-"], "--out is -"),
        (["--batch-file", "-", "--out", "a"], "--batch-file is -"),
        (["--batch-file", "p", "--out", "./p"], "--out is the file of prompts, `p`"),
        (["--batch-file", "p", "--out", "a", "Hello"], "PROMPT is given with --batch-file"),
        (["--batch-file", "p", "--out", "a", "--watch"], "--watch is given with --batch-file"),
        (["--batch-file", "p", "--out", "a", "--json"], "--json is given with --batch-file"),
        (["--batch-file", "p", "--out", "a", "--stats"], "--stats is given with --batch-file"),
        (["--batch-file", "nowhere", "--out", "a"], "`nowhere`: No such file or directory"),
        (
            ["--batch-file", "p", "--out", "a", "--system", "S", "--no-chat-template"],
            "--system is given with --no-chat-template",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused_before_anything_is_loaded(
    run_here, monkeypatch, tmp_path, flags, said
):
    monkeypatch.chdir(tmp_path)
    run = run_here("generate", *flags)
    assert run.code == 1 and run.out == ""
    assert run.err.startswith(f"error: {said}")
    assert not list(tmp_path.iterdir())


def test_without_a_file_there_is_no_job():
    names = ("batch_file", "out", "rows")
    assert job_of(dict.fromkeys(names)) is None
