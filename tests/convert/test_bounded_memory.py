"""Peak resident memory of whole conversions, in processes of their own: slow, and gigabytes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "convert.py"
ROOM = 12_000_000_000  # bytes of disk


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mixed-4-8", "bf16"])
def test_a_conversion_keeps_its_bars(tmp_path, recipe):
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip(f"needs {ROOM / 1e9:.0f} GB of disk")
    command = [sys.executable, str(BENCHMARK), "--recipe", recipe, "--scratch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bars kept" in done.stdout
    assert not list(tmp_path.iterdir())
