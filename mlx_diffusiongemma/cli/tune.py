"""`dgemma-mlx tune`: on this machine, our kernel or MLX's own operation, site by site."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import note, write_stdout
from mlx_diffusiongemma.cli.loading import check_backend, open_runtime
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.options import GenerationOptions

if TYPE_CHECKING:
    from mlx_diffusiongemma.kernels.dispatch import Site

_LONG_PROMPT = 700  # words: more tokens than one launch of the router takes
_MAX_TOKENS = 16


def tune_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="`demo`, a folder or a Hub model.")
    ] = "demo",
    show: Annotated[
        bool, typer.Option("--show", help="Show what was chosen; measure nothing.")
    ] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was chosen.")] = False,
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
) -> None:
    """Time our kernels against MLX's operations on this GPU, as MODEL uses them, and remember.

    Loading a model does so once for what was never measured here; this measures all anew, after
    which a seed may give another text. A kernel that fails or is wrong is banned; one that wins by
    3 % or more is chosen. The file is in the cache folder. DGEMMA_SITES=SITE=CHOICE,... in the
    environment overrides it.
    """
    if show and reset:
        raise ConfigError("there are both --show and --reset", hint="give one of them")
    check_backend()

    from mlx_diffusiongemma.kernels import choices, dispatch

    path = choices.default_path()
    if reset:
        path.unlink(missing_ok=True)
        note(f"nothing is chosen any more: {path}")
    elif show:
        sites = choices.read(path)
        write_stdout(as_table(sites) if sites else f"nothing is chosen here: {path}\n")
    elif not dispatch.has_kernels():
        note("there is nothing to tune: this machine computes without a GPU")
    else:
        runtime = open_runtime(model, revision=revision, dtype=dtype, force=force, measure=False)
        with dispatch.meeting() as met:
            # A site is timed with the rows that it meets first: about those of a canvas.
            for words in (runtime.config.canvas_length, _LONG_PROMPT):
                options = GenerationOptions(max_tokens=_MAX_TOKENS, seed=0)
                runtime.generate("word " * words, options)
        found = choices.read(path) | measured(met)
        choices.write(path, found)
        choices.forget()
        write_stdout(as_table(found))


def measured(sites: "list[Site]") -> dict[str, dict[str, Any]]:
    """What was found for each site, as the file has it."""
    from mlx_diffusiongemma.kernels import tuning

    found = tuning.verdicts(sites)
    for site, verdict in found.items():
        for name, reason in verdict.banned.items():
            note(f"{name} of {site} is not used: it {reason}")
    return {site: verdict.as_fields() for site, verdict in found.items()}


def as_table(sites: Mapping[str, dict[str, Any]]) -> str:
    """A line for each site: what is chosen, and the milliseconds of all that are right."""
    lines = []
    for name, site in sorted(sites.items()):
        times = [f"{one} {each} ms" for one, each in site.get("milliseconds", {}).items()]
        bans = [f"{one} {reason}" for one, reason in site.get("banned", {}).items()]
        lines.append(f"{name}: {site['choice']} ({', '.join(times + bans)})\n")
    return "".join(lines)
