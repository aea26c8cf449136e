"""Peak memory and time of a conversion, and of mlx_vlm.convert beside it where it is.

    python benchmarks/convert.py                       2.5 GB
    python benchmarks/convert.py --size all --peer PYTHON
                                                       2.5, 4.8 and 10 GB, also by mlx-vlm

The sources are synthetic (`synthetic_released.py`), each conversion runs in a process of its own.
Both sides convert the same source in turns; the file cache is as warm for one as for the other.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
from synthetic_released import SIZES, write_released

from mlx_diffusiongemma import __version__

HERE = Path(__file__).resolve().parent
MAX_PEAK_BYTES = 1.6e9  # whatever the size of the checkpoint
MAX_PEAK_RATIO, MAX_TIME_RATIO = 0.35, 1.0  # beside mlx-vlm, at RATIO_SIZE and above
RATIO_SIZE = 4.8
Measurement = dict[str, float]


def convert(python: str, worker: str, source: Path, recipe: str) -> Measurement:
    """One conversion in a fresh process; its output is deleted."""
    output = source.with_name("output")
    command = [python, str(HERE / worker), str(source), str(output), recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(output, ignore_errors=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(source: Path, recipe: str, peer: str | None, rounds: int) -> dict[str, Measurement]:
    """Convert one source on each side, in turns."""
    found: dict[str, list[Measurement]] = {}
    for number in range(rounds):
        sides = [("mlx-diffusiongemma", sys.executable, "convert_worker.py")]
        if peer:
            sides.append(("mlx-vlm", peer, "convert_worker_mlx_vlm.py"))
        for name, python, worker in sides if number % 2 == 0 else reversed(sides):
            found.setdefault(name, []).append(convert(python, worker, source, recipe))
    return {
        name: {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        for name, measured in found.items()
    }


def show(size: str, sides: dict[str, Measurement]) -> bool:
    """One line a side, and whether the bars are kept."""
    print(f"{size} GB")
    for name, side in sides.items():
        peak, seconds, written = side["peak_bytes"] / 1e9, side["seconds"], side["bytes"] / 1e9
        print(
            f"  {name:20} peak {peak:6.2f} GB   {seconds:7.1f} s"
            f"   {side['cpu_seconds']:6.1f} s of CPU   writes {written:.2f} GB"
        )
    ours = sides["mlx-diffusiongemma"]
    is_kept = ours["peak_bytes"] <= MAX_PEAK_BYTES
    if theirs := sides.get("mlx-vlm"):
        peak = ours["peak_bytes"] / theirs["peak_bytes"]
        seconds = ours["seconds"] / theirs["seconds"]
        print(f"  ratio                peak {peak:6.3f}      {seconds:7.2f}")
        if float(size) >= RATIO_SIZE:
            is_kept &= peak <= MAX_PEAK_RATIO and seconds <= MAX_TIME_RATIO
    print("  bars kept" if is_kept else "  ABOVE A BAR")
    return is_kept


def main() -> None:
    """Measure, print, and write JSON where asked; exit status 1 when a bar is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=[*SIZES, "all"], default="2.5", help="GB of the source")
    parser.add_argument("--recipe", default="mixed-4-8")
    parser.add_argument("--peer", help="interpreter of an environment with mlx-vlm")
    parser.add_argument("--rounds", type=int, default=1, help="conversions a side")
    parser.add_argument("--scratch", type=Path, help="folder with room for twice the source")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    arguments = parser.parse_args()
    peer = arguments.peer
    if peer is None and importlib.util.find_spec("mlx_vlm"):
        peer = sys.executable
    sizes = list(SIZES) if arguments.size == "all" else [arguments.size]
    report: dict[str, object] = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": str(mx.default_device()),
        "mlx": mx.__version__,
        "mlx-diffusiongemma": __version__,
        "recipe": arguments.recipe,
        "rounds": arguments.rounds,
    }
    is_kept = True
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            source = Path(scratch) / "source"
            write_released(source, size)
            sides = compare(source, arguments.recipe, peer, arguments.rounds)
        is_kept &= show(size, sides)
        report[size] = sides
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
