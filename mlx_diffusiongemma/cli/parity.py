"""`dgemma-mlx parity`: record a model in one place, check another copy of it in another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import note, print_json, say
from mlx_diffusiongemma.cli.loading import check_backend, find_model
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.hub import DEFAULT_MODEL
from mlx_diffusiongemma.hub_cache import format_size

if TYPE_CHECKING:
    from mlx_diffusiongemma.parity.comparison import Comparison

parity = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Prove that one copy of a model computes what another does, with files.",
)

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="The trace to write.", show_default=False),
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend", metavar="NAME", help="`transformers`, the reference, or `mlx`, this program."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu or cuda, for transformers. [cuda where there is one]",
        show_default=False,
    ),
]
SuiteName = Annotated[
    str, typer.Option("--suite", metavar="NAME", help="`default`, or `small` for tests.")
]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="TRACE",
        help="Take inputs and random draws from this trace, to compare the two.",
        show_default=False,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="CLASS",
        help="Judge as fp32, fp16, bf16, 8-bit or 4-bit. [the coarser of the two sides']",
        show_default=False,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write the report as a page with plots, too.",
        show_default=False,
    ),
]
TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A file of `parity record`.")]
OtherTrace = Annotated[Path, typer.Argument(metavar="OTHER", help="What is held against it.")]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Say how large the trace can get, from config.json alone, and stop; without MODEL for "
        "the released one.",
    ),
]


@parity.command("record", short_help="Write down what a model computes.")
def record_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="`demo`, a folder, or a Hub model `org/name`."),
    ] = None,
    out: Out = None,
    backend: Backend = "transformers",
    dtype: arguments.Dtype = None,
    device: Device = None,
    suite: SuiteName = "default",
    like: Like = None,
    estimate: Estimate = False,
    revision: arguments.Revision = None,
    force: arguments.Force = False,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Run prompts, canvases and whole generations through MODEL and write what it computed."""
    if estimate:
        _show_estimate(model, suite, revision, as_json)
        return
    if model is None or out is None:
        raise ConfigError(
            f"there is no {'MODEL' if model is None else '--out'}",
            hint="`dgemma-mlx parity record MODEL --out FILE`",
        )
    _check_writable(out)
    folder = find_model(model, revision)

    from mlx_diffusiongemma.parity.recording import record
    from mlx_diffusiongemma.parity.suite import find_suite
    from mlx_diffusiongemma.parity.trace_file import read_trace, write_trace
    from mlx_diffusiongemma.parity.workflow import open_subject, record_like, suite_inputs

    chosen = find_suite(suite)
    reference = None if like is None else read_trace(like)
    subject = open_subject(folder, model, backend=backend, dtype=dtype, device=device, force=force)
    if reference is None:
        trace = record(subject, suite_inputs(folder, chosen), progress=note)
    else:
        trace = record_like(reference, subject, progress=note)
    size = write_trace(out, trace)
    producer = trace.manifest.producer
    fields = {"file": out.name, "bytes": size, "backend": producer.backend}
    fields |= {"device": producer.device, "dtype": producer.dtype}
    if as_json:
        print_json(fields)
    else:
        say(f"wrote {out.name}: {format_size(size)}, {producer.dtype} on {producer.device}")


@parity.command("check", short_help="Run a trace again on a model here.")
def check_command(
    trace: TraceFile,
    model: arguments.Model = None,
    dtype: arguments.Dtype = None,
    precision: Precision = None,
    html: Html = None,
    revision: arguments.Revision = None,
    force: arguments.Force = False,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Run TRACE again on a model here and say how far the two lie apart, and where they part.

    The exit code is 1 when the verdict is FAIL.
    """
    check_backend()
    _check_writable(html)

    from mlx_diffusiongemma.parity.trace_file import read_trace

    recorded = read_trace(trace)  # before a model is fetched
    name = DEFAULT_MODEL if model is None else model
    folder = find_model(name, revision)

    from mlx_diffusiongemma.parity.facts import check_same_model, model_facts
    from mlx_diffusiongemma.parity.workflow import check, open_subject

    check_same_model(recorded.manifest.model, model_facts(folder, name))  # before it is loaded
    subject = open_subject(folder, name, backend="mlx", dtype=dtype, force=force)
    _show(check(recorded, subject, progress=note), precision, html, as_json)


@parity.command("compare", short_help="Compare two traces.")
def compare_command(
    trace: TraceFile,
    other: OtherTrace,
    precision: Precision = None,
    html: Html = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Compare two traces of the same inputs: the second was recorded with `--like` the first.

    The exit code is 1 when the verdict is FAIL.
    """
    check_backend()
    _check_writable(html)

    from mlx_diffusiongemma.parity.comparison import compare
    from mlx_diffusiongemma.parity.trace_file import read_trace

    _show(compare(read_trace(trace), read_trace(other)), precision, html, as_json)


def _check_writable(path: Path | None) -> None:
    """ConfigError when nothing can be written there, before minutes are spent on what to write."""
    if path is not None and path.is_dir():
        raise ConfigError(f"`{path}` is a folder", hint="name a file in it")
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"there is no folder `{path.parent}`", hint="make it, or name another")


def _show(
    comparison: "Comparison", precision: str | None, html: Path | None, as_json: bool
) -> None:
    """Print the report; exit code 1 when the verdict is FAIL."""
    from mlx_diffusiongemma.parity.page import as_page
    from mlx_diffusiongemma.parity.report import as_fields, as_lines
    from mlx_diffusiongemma.parity.verdict import judge

    verdict = judge(comparison, precision)
    if html is not None:
        html.write_text(as_page(comparison, verdict), encoding="utf-8")
    if as_json:
        print_json(as_fields(comparison, verdict))
    else:
        print("\n".join(as_lines(comparison, verdict)))
    if not verdict.passed:
        raise typer.Exit(1)


def _show_estimate(model: str | None, suite: str, revision: str | None, as_json: bool) -> None:
    check_backend()

    from mlx_diffusiongemma.config import read_config, read_generation_config
    from mlx_diffusiongemma.parity.suite import estimate, find_suite
    from mlx_diffusiongemma.released import NAME, released_config, released_generation

    name = NAME if model is None else model
    config, generation = released_config(), released_generation()
    if model is not None:
        folder = find_model(model, revision)
        config, generation = read_config(folder), read_generation_config(folder)
    parts = estimate(find_suite(suite), config, generation)
    total = sum(parts.values())
    if as_json:
        print_json({"model": name, "suite": suite, "bytes": total, "parts": parts})
        return
    print(f"at most {format_size(total)} for {name}, suite {suite}")
    for part, size in parts.items():
        print(f"{part:12} {format_size(size):>9}")
