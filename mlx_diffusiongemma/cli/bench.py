"""`dgemma-mlx bench`: measuring the dial between speed and quality, and counting a step's work."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.bench_kernels import kernels_command
from mlx_diffusiongemma.cli.compare import compare_command
from mlx_diffusiongemma.cli.console import counting, write_stdout
from mlx_diffusiongemma.cli.loading import open_runtime
from mlx_diffusiongemma.cli.soak import soak_command
from mlx_diffusiongemma.errors import ConfigError

_DEFAULT_STEPS = "1,2,4,8,16,24,48"

bench_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure speed and quality on this machine, and count what a step costs."""


bench_app.command("compare")(compare_command)
bench_app.command("soak")(soak_command)
bench_app.command("kernels")(kernels_command)


@bench_app.command("sweep")
def sweep_command(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="`demo`, a folder or a Hub model.")
    ] = "demo",
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
    task: Annotated[str, typer.Option("--task", help="sudoku, add or story.")] = "sudoku",
    steps: Annotated[
        str, typer.Option("--steps", metavar="N,N,...", help="Step limits to measure.")
    ] = _DEFAULT_STEPS,
    presets: Annotated[bool, typer.Option("--presets", help="Measure the presets too.")] = False,
    autoregressive: Annotated[
        bool, typer.Option("--ar/--no-ar", help="Measure --mode ar beside them.")
    ] = True,
    fast_sc: Annotated[bool, typer.Option("--fast-sc", help="Measure --fast-sc too.")] = False,
    count: Annotated[int, typer.Option("--count", min=1, help="Examples for each point.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same examples.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all numbers as JSON.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw them; needs matplotlib.")
    ] = None,
) -> None:
    """Measure accuracy against time and steps on a task whose answers a rule can check.

    The tasks are those of the model that ships with this program, `demo`. A line for each setting
    goes to standard output.
    """
    limits = _numbers(steps)
    _check_folder(out)
    _check_folder(png)

    from mlx_diffusiongemma.bench import plot, sweep, tasks
    from mlx_diffusiongemma.bench.machine import describe_machine

    if task not in tasks.TASKS:
        raise ConfigError(f"--task is {task!r}", hint=f"it is one of {', '.join(tasks.TASKS)}")
    if png:
        plot.require_matplotlib()
    runtime = open_runtime(model, revision=revision, dtype=dtype, force=force)
    settings = sweep.settings(
        limits,
        max_tokens=tasks.TASKS[task].max_tokens,
        presets=presets,
        autoregressive=autoregressive,
        fast_self_conditioning=fast_sc,
    )
    examples = tasks.draw(task, count, seed)
    with counting(count, "examples") as progress:
        points = sweep.run_sweep(runtime, settings, examples, seed=seed, progress=progress)
    write_stdout("".join(f"{line}\n" for line in sweep.table(points)))
    if out:
        about = {"model": model, "task": task, "seed": seed, "machine": describe_machine()}
        report = sweep.report(points, about)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if png:
        plot.draw(points, png, f"{task}, {count} examples for each point, {model}")


@bench_app.command("ledger")
def ledger_command(
    context: Annotated[
        int, typer.Option("--context", min=1, help="Tokens before the canvas.")
    ] = 600,
    recipe: Annotated[
        str, typer.Option("--recipe", help="How the weights are packed.")
    ] = "mixed-4-8",
    fast_sc: Annotated[
        bool, typer.Option("--fast-sc", help="Count a step with --fast-sc beside it.")
    ] = False,
    peer: Annotated[
        str | None,
        typer.Option(
            "--peer", metavar="PYTHON", help="Count mlx-vlm too, by a Python that has it."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all counts as JSON.")
    ] = None,
) -> None:
    """Count what one denoising step of the released model launches and writes on a Mac's GPU.

    Nothing is computed and no weights are needed: the counts come from the graph. See
    docs/performance.md.
    """
    _check_folder(out)

    from mlx_diffusiongemma.bench import ledger

    reports = {"mlx-diffusiongemma": ledger.report(ledger.count_ours(context, recipe))}
    if fast_sc:
        for positions, missed in ("no position", 0), ("a position", 1), ("every position", 256):
            counts = ledger.count_ours(context, recipe, missed=missed)
            name = f"mlx-diffusiongemma, --fast-sc, {positions} from all tokens"
            reports[name] = ledger.report(counts)
    if peer:
        for sampler, counts in ledger.count_peer(peer, context).items():
            reports[f"mlx-vlm, sampler: {sampler}"] = ledger.report(counts)
    write_stdout("".join(f"{line}\n" for line in ledger.table(reports)))
    if out:
        about = {"context": context, "recipe": recipe}
        out.write_text(ledger.as_json(about, reports), encoding="utf-8")


def _check_folder(path: Path | None) -> None:
    if path and not path.parent.is_dir():
        raise ConfigError(f"`{path.parent}` is not a folder", hint="make it first")


def _numbers(steps: str) -> list[int]:
    try:
        return [int(number) for number in steps.split(",") if number.strip()]
    except ValueError:
        raise ConfigError(
            f"--steps is {steps!r}", hint="give whole numbers with commas between them"
        ) from None
