"""What an NVIDIA GPU has to prove, in one run of at most eight minutes: `make test-cuda`.

    python tools/cuda_check.py               results to benchmarks/results/cuda-NAME-OF-THE-GPU.json
    python tools/cuda_check.py --out FILE
    python tools/cuda_check.py --rehearse    the same program on the CPU, with small sizes

Parts run one after another, each in a process of its own: one that fails or hangs does not take the
others with it, and the file is written after each. Nothing is downloaded; models are made on the
spot. It needs Python with MLX's CUDA back-end and pytest; the package need not be installed. torch
and transformers are used where they are.

Exit code: 0 everything passed, 1 something did not, 3 there is no GPU that MLX can use.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from getpass import getuser
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from platform import node
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAILED, NO_GPU = 1, 3
ASKED = "Who are you?"
SKIPPED_CODES = {4, 5}  # does not fit the GPU, by released_torch.py; no such tests, by pytest
SECONDS = 460  # for all parts; what is left of eight minutes is for starting and writing
_SHOWN = 40  # lines of a failure
_PROBE = """
import json, mlx.core as mx
count = mx.device_count(mx.gpu) if mx.cuda.is_available() else 0
print(json.dumps(mx.device_info(mx.gpu)["device_name"] if count else None))
"""
# Where the package is not installed: names its folders as an installation would.
_FINDER = """
import sys
from importlib.util import spec_from_file_location

FOLDERS = {folders!r}

class Finder:
    def find_spec(self, name, path=None, target=None):
        folder = FOLDERS.get(name)
        return folder and spec_from_file_location(
            name, folder + "/__init__.py", submodule_search_locations=[folder]
        )

sys.meta_path.insert(0, Finder())
"""


@dataclass(frozen=True)
class Part:
    """One process: a file of tests, or a program that prints a JSON object."""

    name: str
    command: tuple[str, ...]
    seconds: int
    needs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what it compares with; skipped where that is not installed


@dataclass(frozen=True)
class Result:
    """What came of a part: "passed", "failed", "timed out", "skipped" or "left out"."""

    name: str
    outcome: str
    seconds: float
    tests: dict[str, int] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] | None = None
    output: list[str] = field(default_factory=list)


def parts(rehearse: bool) -> tuple[Part, ...]:
    """What is run; what says most comes first, in case the time runs out."""
    patience = 4 if rehearse else 1

    def tests(name: str) -> tuple[str, ...]:
        chosen = ("-k", "[cpu") if rehearse else ("-m", "cuda")
        options = ("-q", *chosen, "-p", "no:cacheprovider")
        return (sys.executable, "-m", "pytest", *options, f"tests/cuda/{name}.py")

    def program(name: str, *options: str) -> tuple[str, ...]:
        size = ("--small",) if rehearse else ()
        return (sys.executable, f"benchmarks/{name}.py", *options, *size)

    def command(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "mlx_diffusiongemma", *words, "--json")

    trace = "tests/fixtures/traces/demo.safetensors"
    with_torch = ("torch", "transformers")
    return (
        Part("device", command("info", "--device"), 60 * patience),
        Part("operations", tests("test_operations"), 120 * patience, ("pytest",)),
        Part("kernels", tests("test_kernels"), 90 * patience, ("pytest",)),
        Part("models", tests("test_models"), 120 * patience, ("pytest",)),
        Part("parity check", command("parity", "check", trace, "--model", "demo"), 60 * patience),
        Part(
            "generate", command("generate", "--model", "demo", "--seed", "1", ASKED), 60 * patience
        ),
        Part("experts", tests("test_experts"), 60 * patience, ("pytest",)),
        Part("step, 4 bits", program("released_step", "--recipe", "mixed-4-8"), 100 * patience),
        Part("prefill memory", tests("test_prefill_memory"), 60 * patience, ("pytest",)),
        Part("torch", tests("test_torch"), 120 * patience, ("pytest",), with_torch),
        Part("step, 8 bits", program("released_step", "--recipe", "8bit"), 100 * patience),
        Part("step, torch", program("released_torch"), 100 * patience, (), with_torch),
    )


def environment(folder: Path) -> dict[str, str]:
    """Of the parts: exact float32, no network, the package from this tree."""
    variables = os.environ | {"MLX_ENABLE_TF32": "0", "HF_HUB_OFFLINE": "1"}
    try:
        distribution("mlx-diffusiongemma")
    except PackageNotFoundError:
        package = "mlx_diffusiongemma"
        folders = {package: str(ROOT / package)}
        folders |= {f"{package}.{name}": str(ROOT / name) for name in ("convert", "metal")}
        (folder / "sitecustomize.py").write_text(_FINDER.format(folders=folders))
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables


def find_gpu(variables: dict[str, str]) -> tuple[str | None, str]:
    """The GPU's name, or None and the reason."""
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    name = json.loads(done.stdout) if done.returncode == 0 else None
    lines = done.stderr.strip().splitlines() or ["MLX has no CUDA back-end here, or sees no GPU"]
    return name, anonymous(lines[-1])


def run(part: Part, variables: dict[str, str], seconds: float) -> Result:
    """Run one part for at most so long."""
    for names, outcome in (part.beside, "skipped"), (part.needs, "left out"):
        for name in names:
            if find_spec(name) is None:
                return Result(part.name, outcome, 0.0, output=[f"{name} is not installed"])
    if seconds < 1:
        return Result(part.name, "left out", 0.0, output=["no time was left"])
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "tests"
        started = time.perf_counter()
        code, out, err = _finished(
            part.command, variables | {"DGEMMA_CUDA_RESULTS": str(lines)}, seconds
        )
        taken = round(time.perf_counter() - started, 1)
        written = lines.read_text().splitlines() if lines.exists() else []
    details = [json.loads(line) for line in written]
    counts = {
        outcome: sum(each["outcome"] == outcome for each in details)
        for outcome in ("passed", "failed", "skipped")
    }
    numbers = _numbers(out) if code == 0 and "pytest" not in part.command else None
    outcome = "passed"
    if code is None:
        outcome = "timed out"
    elif code in SKIPPED_CODES or (details and not counts["passed"] + counts["failed"]):
        outcome = "skipped"
    elif code:
        outcome = "failed"
    shown = [] if outcome == "passed" else (out + err).splitlines()[-_SHOWN:]
    return Result(part.name, outcome, taken, counts if details else {}, details, numbers, shown)


def _finished(
    command: Sequence[str], variables: dict[str, str], seconds: float
) -> tuple[int | None, str, str]:
    """Exit code, None when it had to be ended with everything it started; both its streams."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, *process.communicate()
    return process.returncode, out, err


def _numbers(text: str) -> dict[str, Any] | None:
    """The JSON object that a program printed last."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def anonymous(value: Any) -> Any:
    """The same without folders, without the machine's and the user's name."""
    if isinstance(value, dict):
        return {key: anonymous(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(each) for each in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"(?<![\w:/])(?:/[\w.@+~-]+)+/", "", value)
    for name in {node(), getuser()} - {""}:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "...", text)
    return text


def run_all(
    chosen: Sequence[Part],
    out: Path,
    about: dict[str, Any],
    variables: dict[str, str],
    seconds: int,
) -> list[Result]:
    """Run the parts and write everything after each of them."""
    started = time.perf_counter()
    results: list[Result] = []
    for part in chosen:
        left = seconds - (time.perf_counter() - started)
        result = run(part, variables, min(part.seconds, left))
        results.append(result)
        told = ", ".join(f"{count} {name}" for name, count in result.tests.items() if count)
        told = told or (result.output[-1] if result.output and not result.seconds else "")
        print(f"{result.outcome:9}  {result.name:16} {result.seconds:6.1f} s  {told}", flush=True)
        whole = about | {
            "seconds": round(time.perf_counter() - started, 1),
            "passed": all(each.outcome in ("passed", "skipped") for each in results),
            "parts": [asdict(each) for each in results],
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(anonymous(whole), indent=1) + "\n")
    return results


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except OSError:
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else None


def main() -> None:
    """Find the GPU, run all parts, write their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for all parts together")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with small sizes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(Path(folder))
        gpu, reason = ("CPU", "") if arguments.rehearse else find_gpu(variables)
        if gpu is None:
            print(f"no NVIDIA GPU that MLX can use, nothing was run: {reason}")
            sys.exit(NO_GPU)
        name = re.sub(r"\W+", "-", gpu.lower()).strip("-")
        folder_of = "build" if arguments.rehearse else "benchmarks/results"
        out = arguments.out or ROOT / folder_of / f"cuda-{name}.json"
        about = {
            "command": "make test-cuda" if not arguments.rehearse else "a rehearsal on the CPU",
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": gpu,
            "driver": _driver(),
        }
        results = run_all(parts(arguments.rehearse), out, about, variables, arguments.seconds)
    print(f"results: {out.name}")
    sys.exit(0 if all(each.outcome in ("passed", "skipped") for each in results) else FAILED)


if __name__ == "__main__":
    main()
