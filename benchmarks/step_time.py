"""Step time, prefill and peak memory of this runtime, and of mlx-vlm beside it where it is.

    python benchmarks/step_time.py                      the demo model and a synthetic mid-size one
    python benchmarks/step_time.py --peer PYTHON        also mlx-vlm, by an interpreter that has it

Both sides run the entropy-bound sampler for the same number of steps, each measurement in a process
of its own, in turns, so that a busy machine slows both. Medians are reported.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
from synthetic import write_checkpoint

from mlx_diffusiongemma import __version__

HERE = Path(__file__).resolve().parent
MODELS = {"demo": (64, 24), "mid": (512, 3)}  # prompt tokens and denoising steps
Measurement = dict[str, float]


def run_worker(python: str, worker: str, checkpoint: Path, model: str) -> Measurement:
    """One measurement in a fresh process."""
    tokens, steps = MODELS[model]
    command = [python, str(HERE / worker), str(checkpoint), str(tokens), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def median(measurements: list[Measurement]) -> Measurement:
    """The median of each number."""
    return {
        name: statistics.median(measurement[name] for measurement in measurements)
        for name in measurements[0]
    }


def compare(model: str, checkpoint: Path, peer: str | None, rounds: int) -> dict[str, Measurement]:
    """Measure one model on each side, in turns."""
    ours: list[Measurement] = []
    theirs: list[Measurement] = []
    for _ in range(rounds):
        ours.append(run_worker(sys.executable, "worker.py", checkpoint, model))
        if peer:
            theirs.append(run_worker(peer, "worker_mlx_vlm.py", checkpoint, model))
    sides = {"mlx-diffusiongemma": median(ours)}
    if theirs:
        sides["mlx-vlm"] = median(theirs)
        ratios = [a["step_seconds"] / b["step_seconds"] for a, b in zip(ours, theirs, strict=True)]
        sides["ratio"] = {"step_time": statistics.median(ratios)}
    return sides


def show(model: str, sides: dict[str, Measurement]) -> None:
    """One line a side."""
    tokens, steps = MODELS[model]
    print(f"{model}: prompt of {tokens} tokens, {steps} denoising steps")
    for name, side in sides.items():
        if name == "ratio":
            print(f"  step time, this runtime / mlx-vlm: {side['step_time']:.2f}")
            continue
        step, prefill = side["step_seconds"] * 1e3, side["prefill_seconds"] * 1e3
        peak = side["peak_bytes"] / 1e6
        print(f"  {name:20} step {step:9.1f} ms   prefill {prefill:9.1f} ms   peak {peak:7.1f} MB")


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--peer", help="interpreter of an environment with mlx-vlm")
    parser.add_argument("--rounds", type=int, default=3, help="measurements a side")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    arguments = parser.parse_args()
    peer = arguments.peer
    if peer is None and importlib.util.find_spec("mlx_vlm"):
        peer = sys.executable
    report: dict[str, object] = {
        "machine": f"{platform.system()} {platform.machine()}, {platform.processor() or 'unnamed'}",
        "device": str(mx.default_device()),
        "mlx": mx.__version__,
        "mlx-diffusiongemma": __version__,
    }
    with tempfile.TemporaryDirectory() as scratch:
        for model in MODELS if arguments.model == "all" else [arguments.model]:
            checkpoint = Path(str(files("mlx_diffusiongemma").joinpath("demo")))
            if model == "mid":
                checkpoint = Path(scratch)
                write_checkpoint(checkpoint)
            sides = compare(model, checkpoint, peer, arguments.rounds)
            show(model, sides)
            report[model] = sides
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
