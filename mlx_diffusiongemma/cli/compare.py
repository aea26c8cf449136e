"""`dgemma-mlx bench compare`: the same prompts by canvases, left to right, and by mlx-vlm."""

import contextlib
import json
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import counting, note, write_stdout
from mlx_diffusiongemma.cli.loading import find_model
from mlx_diffusiongemma.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from mlx_diffusiongemma.bench.compare import Workers
    from mlx_diffusiongemma.bench.exam import Exam
    from mlx_diffusiongemma.bench.tasks import Example

_LONG = 256  # tokens of an answer to somebody's own prompt
_TWO_MODELS = 2.5  # times the weights of one: two of them, their caches and steps


def compare_command(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="`demo`, a folder or a Hub model.")
    ] = "demo",
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    peer: Annotated[
        str | None,
        typer.Option(
            "--peer",
            metavar="PYTHON",
            help="Interpreter of an environment with mlx-vlm, to run beside.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str, typer.Option("--task", help="sudoku, add or story: what the demo was trained for.")
    ] = "story",
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Prompts of your own, one a line; nothing is checked then.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Examples of the task.")] = 16,
    max_tokens: arguments.MaxTokens = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same examples.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all numbers as JSON.")
    ] = None,
) -> None:
    """Measure this runtime beside mlx-vlm and beside itself from left to right.

    All sides read the same checkpoint and answer the same prompts in turns. A table goes to
    standard output, what must be known to read it to standard error.
    """
    if out and not out.parent.is_dir():
        raise ConfigError(f"`{out.parent}` is not a folder", hint="make it first")

    from mlx_diffusiongemma.bench import tasks
    from mlx_diffusiongemma.bench.exam import Exam

    if task not in tasks.TASKS:
        raise ConfigError(f"--task is {task!r}", hint=f"it is one of {', '.join(tasks.TASKS)}")
    examples = tasks.draw(task, count, seed) if prompts is None else _read(prompts)
    own = _LONG if prompts else tasks.TASKS[task].max_tokens
    folder = find_model(model, revision)
    exam = Exam(folder, examples, max_tokens=max_tokens or own)
    with contextlib.closing(_workers(folder, dtype, peer)) as workers:
        report = _measure(workers, exam, seed, peer=peer is not None, checked=prompts is None)
    if out:
        about = {"model": model, "task": None if prompts else task, "seed": seed}
        out.write_text(json.dumps(about | report, indent=1) + "\n", encoding="utf-8")


def _measure(
    workers: "Workers", exam: "Exam", seed: int, *, peer: bool, checked: bool
) -> dict[str, Any]:
    """Ask everybody everything, show what came of it, and return it for JSON."""
    from mlx_diffusiongemma.bench import compare, compare_report
    from mlx_diffusiongemma.bench.machine import describe_machine

    choices, questions = compare.ways(peer=peer), exam.questions
    with counting(len(choices) * len(questions), "answers") as progress:
        answers = compare.run_compare(workers, choices, questions, seed=seed, progress=progress)
    rows = []
    for name, some in answers.items():
        right = exam.judge([answer.token_ids for answer in some]) if checked else None
        rows.append(compare.summarise(name, some, right))
    on_cpu = workers.hellos[compare.OURS]["device"] == "cpu"
    lines = [*compare_report.table(rows), *compare_report.ratio_lines(answers, on_cpu=on_cpu)]
    write_stdout("".join(f"{line}\n" for line in lines))
    said = compare_report.notes(
        workers.hellos, answers, describe_machine(), together=workers.together
    )
    for line in said:
        note(line)
    return compare_report.report(rows, answers, workers.hellos, said)


def _read(path: Path) -> list["Example"]:
    """The prompts of a file, one a line; empty lines say nothing."""
    from mlx_diffusiongemma.bench.tasks import Example

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PromptError(f"`{path}` is not valid UTF-8") from None
    examples = [Example(line) for line in lines if line.strip()]
    if not examples:
        raise PromptError(f"`{path}` holds no prompts", hint="write one a line")
    return examples


def _workers(folder: Path, dtype: str | None, peer: str | None) -> "Workers":
    """Ours, running, and mlx-vlm's to come; both stay where the memory is enough for two."""
    from mlx_diffusiongemma.bench.compare import OURS, THEIRS, Workers
    from mlx_diffusiongemma.bench.process import WorkerProcess
    from mlx_diffusiongemma.device import available_memory

    module = f"{WorkerProcess.__module__.rpartition('.')[0]}.worker"
    command = [sys.executable, "-m", module, str(folder), *([dtype] if dtype else [])]
    workers = Workers({OURS: partial(WorkerProcess, command)})
    with contextlib.ExitStack() as unless_all_is_well:
        unless_all_is_well.callback(workers.close)
        hello = workers.get(OURS).hello
        workers.together = _TWO_MODELS * hello["active_bytes"] <= available_memory()
        if peer is not None:
            script = str(files("mlx_diffusiongemma.bench").joinpath("worker_mlx_vlm.py"))
            theirs = [peer, script, str(folder), hello["dtype"]]
            hint = "try `PYTHON -c 'import mlx_vlm.generate'`; this was written for mlx-vlm 0.7.10"
            workers.add(THEIRS, partial(WorkerProcess, theirs, hint=hint))
            workers.get(THEIRS)  # what is wrong with it shows now, not after half the answers
        unless_all_is_well.pop_all()
    return workers
