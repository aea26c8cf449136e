"""The examples are short and run as they stand."""

import json
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


def test_sudoku():
    *rows, last = run("sudoku.py").splitlines()
    assert re.fullmatch(r"solved in \d+ steps", last)
    clues, cells = ("".join(half) for half in zip(*(row.split("-->") for row in rows), strict=True))
    pairs = list(zip(clues.split(), cells.split(), strict=True))
    assert len(pairs) == 16
    assert all(clue in (".", cell) for clue, cell in pairs)


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        ("{name: 'Mia', 'age': 4,", {"name": "Mia", "age": 4}),
        ('{"age": 12 "name": "Ada Byron"', {"name": "Ada Byron", "age": 12}),
        ('{"name": "Mia", "age": 400', {"name": "Mia"}),
        ("nothing of it", {}),
    ],
)
def test_fix_json(broken, kept):
    asked, answer = run("fix_json.py", broken).splitlines()
    said = json.loads(answer)
    assert asked == broken
    assert said.items() >= kept.items()
    assert len(said["name"]) <= 12
    assert 0 <= said["age"] <= 99
