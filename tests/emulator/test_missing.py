"""Without clang the tests of kernels skip and say why; in CI on Linux that is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONE_TEST = "tests/emulator/test_rules.py::test_the_source_is_mlx_own"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="says so anyway elsewhere")


def run_without_clang(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ONE_TEST]
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = kept | {"PATH": "", "COLUMNS": "200"} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@linux
def test_without_clang_the_tests_are_skipped_and_say_why():
    done = run_without_clang()
    assert done.returncode == 0
    assert "no clang 17 or newer for the kernel emulator" in done.stdout
    assert "1 skipped" in done.stdout


@linux
def test_without_clang_ci_fails():
    done = run_without_clang(CI="true")
    assert done.returncode != 0
    assert "no clang 17 or newer for the kernel emulator" in done.stdout + done.stderr
