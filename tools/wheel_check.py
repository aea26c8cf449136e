"""Build the wheel, install it in a clean environment, and run it there as a user would.

    tree --> sdist --> wheel --> fresh environment --> command, library, package data

Everything after the installation runs outside the tree, offline, in an empty home and with an
empty PATH: no compiler, no git, nothing that the wheel does not bring.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELP_SECONDS = 0.3
EXTRA = "" if sys.platform == "darwin" else "[cpu]"

CONVERT = "import mlx_diffusiongemma.convert as convert; print(convert.__name__)"
METAL = """
from importlib.resources import files
names = [entry.name for entry in files('mlx_diffusiongemma.metal').iterdir()]
print(*sorted(name for name in names if name.endswith('.metal')))
"""
LOADED_BY_HELP = """
import sys
from mlx_diffusiongemma.cli.app import main
sys.argv[1:] = ['--help']
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {'mlx.core', 'mlx_lm', 'transformers', 'numpy', 'torch'} & set(sys.modules)
print('heavy:', *sorted(heavy))
"""


def main() -> None:
    """Run every check; the first that fails ends the run with its output."""
    with tempfile.TemporaryDirectory(prefix="dgemma-wheel-") as folder:
        check(Path(folder))
    print("wheel-check: passed")


def check(folder: Path) -> None:
    """All steps, in `folder`."""
    wheel = build(folder / "dist")
    print(f"built {wheel.name}, {wheel.stat().st_size / 2**20:.1f} MB")
    python = install(wheel, folder / "venv")
    (folder / "empty").mkdir()
    run = Runner(python, folder / "empty")

    version = run.command("--version").strip()
    expect(version.split()[0] == "dgemma-mlx", f"--version prints `{version}`")
    check_help_time(run)
    heavy = run.python(LOADED_BY_HELP).splitlines()[-1]
    expect(heavy == "heavy:", f"--help loads nothing heavy ({heavy})")
    answer = run.command("generate", "--model", "demo", "--seed", "1", "2 + 2 =")
    expect(bool(answer.strip()), f"the demo model answers: {answer.strip()!r}")
    expect(run.python(CONVERT) == "mlx_diffusiongemma.convert\n", "convert imports")
    shipped = run.python(METAL).split()
    sources = sorted(path.name for path in (ROOT / "metal").glob("*.metal"))
    expect(shipped == sources, f"{len(sources)} metal sources ship: {' '.join(sources) or 'none'}")


def check_help_time(run: "Runner") -> None:
    """`--help` is quick. On a machine with more work than cores, time says nothing: only shown."""
    seconds = min(run.timed("--help") for _ in range(5))
    shown = f"--help takes {seconds:.2f} s of {HELP_SECONDS} s"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if seconds >= HELP_SECONDS and load > cores:
        print(f"busy {shown}: not judged with a load of {load:.1f} on {cores} cores")
    else:
        expect(seconds < HELP_SECONDS, shown)


def build(out: Path) -> Path:
    """Build sdist and wheel into `out`; the wheel's path."""
    source = out.parent / "source"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    must_run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source))
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with its back-end into a new environment; that environment's Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    must_run(str(python), "-m", "pip", "install", "--quiet", f"{wheel}{EXTRA}")
    return python


class Runner:
    """Runs the installed package with nothing else around it."""

    def __init__(self, python: Path, folder: Path):
        self._python = python
        self._folder = folder
        self._env = {"PATH": "", "HOME": str(folder), "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}

    def command(self, *arguments: str) -> str:
        """Standard output of `dgemma-mlx arguments`."""
        return self._run(str(self._python.parent / "dgemma-mlx"), *arguments)

    def python(self, code: str) -> str:
        """Standard output of a few lines of Python."""
        return self._run(str(self._python), "-c", code)

    def timed(self, *arguments: str) -> float:
        """Seconds that the command takes."""
        started = time.perf_counter()
        self.command(*arguments)
        return time.perf_counter() - started

    def _run(self, *command: str) -> str:
        return must_run(*command, env=self._env, cwd=self._folder)


def must_run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Standard output of a command; ends the check with all of its output when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=env or os.environ, cwd=cwd, timeout=900
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nfailed ({done.returncode}): {' '.join(command)}")
    return done.stdout


def expect(claim: bool, what: str) -> None:
    """Report one check, and stop when it does not hold."""
    print(f"{'ok  ' if claim else 'FAIL'} {what}")
    if not claim:
        sys.exit(1)


if __name__ == "__main__":
    main()
