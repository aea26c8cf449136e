"""Step time, prefill and peak memory of this runtime, and of mlx-vlm beside it where it is.

    python benchmarks/step_time.py                      the demo model and a synthetic mid-size one
    python benchmarks/step_time.py --peer PYTHON        also mlx-vlm, by an interpreter that has it

Both sides run the entropy-bound sampler for the same number of steps, each measurement in a process
of its own. The sides take turns, and who begins changes with every round, so that a machine that is
busy or changes its speed slows both. Medians are reported, ratios as medians over the rounds.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
from synthetic import write_checkpoint

from mlx_diffusiongemma import __version__
from mlx_diffusiongemma.bench.compare import OURS, THEIRS, Answer
from mlx_diffusiongemma.bench.machine import describe_machine
from mlx_diffusiongemma.bench.process import WorkerProcess

HERE = Path(__file__).resolve().parent
MODELS = {"demo": (64, 96), "mid": (512, 3)}  # prompt tokens and denoising steps
RATIOS = ("step_seconds", "step_cpu_seconds")  # at most 1.0 is the aim
Measurement = dict[str, float]


def measure_ours(checkpoint: Path, model: str) -> Measurement:
    """One measurement of this runtime in a fresh process."""
    tokens, steps = MODELS[model]
    command = [sys.executable, str(HERE / "worker.py"), str(checkpoint), str(tokens), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_theirs(python: str, checkpoint: Path, model: str) -> Measurement:
    """One measurement of mlx-vlm in a fresh process: the same sampler, prompt and steps."""
    tokens, steps = MODELS[model]
    config = json.loads((checkpoint / "config.json").read_text())
    vocab_size = config["text_config"]["vocab_size"]
    prompt: list[int] = mx.random.randint(3, vocab_size, (tokens,), key=mx.random.key(1)).tolist()
    request = {
        "prompt_ids": prompt,
        "eos_token_ids": [],
        "seed": 0,
        "max_tokens": config["canvas_length"],
        "sampler": "entropy-bound",
        "fixed_steps": steps,
    }
    script = str(files("mlx_diffusiongemma.bench").joinpath("worker_mlx_vlm.py"))
    with WorkerProcess([python, script, str(checkpoint), "float32"]) as worker:
        answer = Answer(**worker.ask(request))
    assert answer.passes == steps
    return {
        "prefill_seconds": answer.prompt_seconds,
        "step_seconds": answer.step_seconds,
        "step_cpu_seconds": answer.step_cpu_seconds,
        "peak_bytes": answer.peak_bytes,
    }


def median(measurements: list[Measurement]) -> Measurement:
    """The median of each number."""
    return {
        name: statistics.median(measurement[name] for measurement in measurements)
        for name in measurements[0]
    }


def compare(model: str, checkpoint: Path, peer: str | None, rounds: int) -> dict[str, Measurement]:
    """Measure one model on each side, in turns."""
    runs = {OURS: partial(measure_ours, checkpoint, model)}
    if peer:
        runs[THEIRS] = partial(measure_theirs, peer, checkpoint, model)
    rows: list[dict[str, Measurement]] = []
    for turn in range(rounds):
        order = list(runs)[:: -1 if turn % 2 else 1]
        rows.append({side: runs[side]() for side in order})
    sides = {side: median([row[side] for row in rows]) for side in runs}
    if peer:
        ratios = [{key: row[OURS][key] / row[THEIRS][key] for key in RATIOS} for row in rows]
        sides["ratio"] = median(ratios)
    return sides


def show(model: str, sides: dict[str, Measurement]) -> None:
    """One line a side."""
    tokens, steps = MODELS[model]
    print(f"{model}: prompt of {tokens} tokens, {steps} denoising steps")
    for name, side in sides.items():
        if name == "ratio":
            wall, cpu = (side[key] for key in RATIOS)
            print(f"  step, {OURS} / {THEIRS}: {wall:.2f} of its time, {cpu:.2f} of its CPU time")
            continue
        step, prefill = side["step_seconds"] * 1e3, side["prefill_seconds"] * 1e3
        peak = side["peak_bytes"] / 1e6
        print(f"  {name:20} step {step:9.1f} ms   prefill {prefill:9.1f} ms   peak {peak:7.1f} MB")


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--peer", help="interpreter of an environment with mlx-vlm")
    parser.add_argument("--rounds", type=int, default=5, help="measurements a side")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    arguments = parser.parse_args()
    peer = arguments.peer
    if peer is None and importlib.util.find_spec("mlx_vlm"):
        peer = sys.executable
    report: dict[str, object] = {
        "machine": describe_machine(),
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
