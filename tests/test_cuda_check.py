"""`make test-cuda`: its parts do not depend on each other, and its results name no machine."""

import json
import subprocess
import sys
from getpass import getuser
from pathlib import Path
from platform import node

import mlx.core as mx
import pytest

from tools import cuda_check
from tools.cuda_check import Part, anonymous, parts, run_all

ROOT = Path(__file__).resolve().parents[1]
HAS_GPU = mx.cuda.is_available() and mx.device_count(mx.gpu) > 0
PRINTS = "import json; print('a note'); print(json.dumps({'seconds': 0.5, 'from': __file__}))"
FAILS = "import sys; print('half of it'); sys.exit('it broke')"
HANGS = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
)
TESTS = """
import json, os
with open(os.environ["DGEMMA_CUDA_RESULTS"], "a") as file:
    for name, outcome in ("a", "passed"), ("b", "failed"), ("c", "skipped"):
        file.write(json.dumps({"test": name, "outcome": outcome, "measured": {}}) + "\\n")
"""


def part(name, code, seconds=30, **needs):
    return Part(name, (sys.executable, "-c", code), seconds, **needs)


def run(chosen, out, seconds=100.0):
    about = {"gpu": "a GPU"}
    results = run_all(chosen, out, about, dict(cuda_check.os.environ), seconds)
    return {each.name: each for each in results}, json.loads(out.read_text())


def test_what_fails_or_hangs_or_is_missing_takes_nothing_else_with_it(tmp_path, capsys):
    chosen = [
        part("fails", FAILS),
        part("hangs", HANGS, 1),
        part("needs", PRINTS, needs=("a_module_that_is_not_there",)),
        part("beside", PRINTS, beside=("a_module_that_is_not_there",)),
        part("tests", TESTS),
        part("prints", PRINTS.replace("__file__", "'here'")),
    ]
    results, written = run(chosen, tmp_path / "new" / "out.json")
    assert {name: result.outcome for name, result in results.items()} == {
        "fails": "failed",
        "hangs": "timed out",
        "needs": "left out",
        "beside": "skipped",
        "tests": "passed",
        "prints": "passed",
    }
    assert results["fails"].output == ["half of it", "it broke"]
    assert results["hangs"].seconds < 20
    assert results["tests"].tests == {"passed": 1, "failed": 1, "skipped": 1}
    assert results["prints"].numbers == {"seconds": 0.5, "from": "here"}
    assert [each["name"] for each in written["parts"]] == [each.name for each in chosen]
    assert (written["gpu"], written["passed"]) == ("a GPU", False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("failed     fails") and len(lines) == len(chosen)
    assert lines[3].endswith("a_module_that_is_not_there is not installed")


def test_the_results_are_written_after_every_part(tmp_path):
    out = tmp_path / "out.json"
    looks = f"import json; assert len(json.load(open({str(out)!r}))['parts']) == 1"
    results, written = run([part("one", "pass"), part("two", looks)], out)
    assert results["two"].outcome == "passed" and written["passed"]


def test_when_the_time_is_up_the_rest_is_left_out(tmp_path):
    results, written = run([part("hangs", HANGS), part("late", "pass")], tmp_path / "out", 1.5)
    assert [each.outcome for each in results.values()] == ["timed out", "left out"]
    assert not written["passed"]


def test_all_parts_together_cannot_take_longer_than_eight_minutes():
    assert cuda_check.SECONDS <= 460
    assert all(0 < each.seconds <= 120 for each in parts(rehearse=False))


def test_no_folder_no_user_and_no_machine_is_in_the_results():
    folders = f"{ROOT}/tests/a.py:3 in '/" + "home/someone/x-1.0/lib' of https://example.org/a/b"
    told = anonymous({"a": [folders, 5, None, {"b": f"{getuser()} at {node()}, {getuser()}s"}]})
    assert told == {
        "a": [
            "a.py:3 in 'lib' of https://example.org/a/b",
            5,
            None,
            {"b": f"... at ..., {getuser()}s"},
        ]
    }


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_it_is_one_line_and_exit_code_3(tmp_path):
    command = [sys.executable, "tools/cuda_check.py", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (cuda_check.NO_GPU, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("no NVIDIA GPU that MLX can use, nothing was run: MLX has no CUDA")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_part_names_a_program_that_exists(rehearse):
    names = [each.name for each in parts(rehearse)]
    assert len(set(names)) == len(names)
    files = {word for each in parts(rehearse) for word in each.command if word.endswith(".py")}
    assert all((ROOT / file).is_file() for file in files)
    bodies = {f"tests/cuda/{path.name}" for path in (ROOT / "tests/cuda").glob("test_*.py")}
    assert bodies - files == {"tests/cuda/test_faults.py"}


def test_the_package_is_found_where_it_is_not_installed(tmp_path, monkeypatch):
    def missing(name):
        raise cuda_check.PackageNotFoundError(name)

    monkeypatch.setattr(cuda_check, "distribution", missing)
    variables = cuda_check.environment(tmp_path)
    code = (
        "import mlx_diffusiongemma.convert as c, mlx_diffusiongemma.metal as m, sys;"
        "print(c.__file__, m.__file__, type(sys.meta_path[0]).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=variables,
    )
    convert, metal = (str(ROOT / name / "__init__.py") for name in ("convert", "metal"))
    assert done.stdout.split() == [convert, metal, "Finder"]


@pytest.mark.slow
def test_the_rehearsal_on_the_cpu_passes(tmp_path):
    command = [sys.executable, "tools/cuda_check.py", "--rehearse", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "out").read_text())
    assert written["passed"] and len(written["parts"]) == len(parts(rehearse=True))
