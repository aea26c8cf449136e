"""`dgemma-mlx generate --batch-file`: a file of prompts, answered into another file."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from mlx_diffusiongemma.cli.batch_flags import Job
from mlx_diffusiongemma.cli.choice import choosing
from mlx_diffusiongemma.cli.console import is_live, note, say, stderr
from mlx_diffusiongemma.options import GenerationOptions

if TYPE_CHECKING:
    from mlx_diffusiongemma.batch import BatchAnswer, BatchRequest
    from mlx_diffusiongemma.batch_file import RowAnswer
    from mlx_diffusiongemma.runtime import Runtime

_LINE_PERCENT = 10  # without a terminal there is a line for each of these
_SHOWN_LINES = 5


def run_job(
    job: Job,
    options: GenerationOptions,
    load: Callable[[], "Runtime"],
    choices: Sequence[str] | None = None,
) -> None:
    """Answer the prompts of a file, or choose for each; exit code 1 when some of them failed."""
    from mlx_diffusiongemma.batch_file import AnswerFile, answer_rows, read_rows

    content = job.prompts.read_bytes()  # what is missing is said before a model is loaded
    runtime = load()
    rows = read_rows(job.prompts.name, content, options, job.system, runtime.fingerprint)
    with AnswerFile(job.out, rows) as answers:
        before, started, passes = answers.done, time.perf_counter(), 0
        if before:
            note(f"`{job.out}` has {before} of {len(rows)} answers, which stay")
        with _Progress(len(rows), before) as progress:
            try:
                for so_far in answer_rows(answers, _way(runtime, job, choices)):
                    passes = so_far
                    progress.update(answers.done)
            except KeyboardInterrupt:
                note(f"{answers.done} of {len(rows)} are written; the same command goes on there")
                raise
        seconds = time.perf_counter() - started
        done = answers.done - before
        say(f"{done} {'row' if done == 1 else 'rows'} in {passes} passes and {seconds:.1f} s")
        if answers.failed:
            lines = ", ".join(map(str, answers.failed[:_SHOWN_LINES]))
            more = ", ..." if len(answers.failed) > _SHOWN_LINES else ""
            note(f"{len(answers.failed)} of {len(rows)} failed: `{job.prompts}` line {lines}{more}")
            raise typer.Exit(1)


def _way(
    runtime: "Runtime", job: Job, choices: Sequence[str] | None
) -> "Callable[[Iterator[BatchRequest]], Iterator[BatchAnswer | RowAnswer]]":
    if choices is not None:
        return choosing(runtime, choices)
    return partial(runtime.stream_batch, rows=job.rows)


class _Progress(contextlib.AbstractContextManager["_Progress"]):
    """Rows on their way, on standard error: a bar at a terminal, now and then a line elsewhere."""

    def __init__(self, total: int, done: int):
        self._total = total
        self._said = done
        self._bar: Progress | None = None
        if is_live():
            self._bar = Progress(
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                console=stderr,
                expand=True,
            )
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> "_Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int) -> None:
        """Show that `done` rows have their answers."""
        if self._bar:
            self._bar.update(self._task, completed=done)
        elif (done - self._said) * 100 >= self._total * _LINE_PERCENT:
            self._said = done
            say(f"{done} of {self._total} answers")
