"""The examples are short and run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_says_what_it_is(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert text.count("\n") <= 40


def test_generate():
    first, last = run("generate.py", "2 + 2 =").splitlines()
    assert first.endswith("4")
    assert "denoising steps" in last


def test_watch_canvas():
    lines = run("watch_canvas.py", "2 + 2 =").splitlines()
    assert lines[0].startswith("1/ 1")
    assert lines[-1].startswith("committed after")
    assert "4" in lines[-1]


def test_own_sampler():
    assert "4" in run("own_sampler.py", "2 + 2 =")


def test_extract():
    assert re.fullmatch(r"name='.*' kind='(fox|frog|cat|dog)' age=\d+\n", run("extract.py"))
