"""`dgemma-mlx generate --choices`: the most probable of some texts, and what speaks for each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import print_json, say, waiting, write_stdout
from mlx_diffusiongemma.errors import ConfigError, ConstraintError, DGemmaError
from mlx_diffusiongemma.options import GenerationOptions

if TYPE_CHECKING:
    from mlx_diffusiongemma.batch import BatchRequest
    from mlx_diffusiongemma.batch_file import RowAnswer
    from mlx_diffusiongemma.choosing import ChoiceResult
    from mlx_diffusiongemma.responder import Prompt
    from mlx_diffusiongemma.runtime import Runtime

_READ = ("seed", "chat_template", "constraint")
_OF_GENERATION = {"watch": "--watch", "prompt_cache_file": "--prompt-cache-file"}


def choices_of(parameters: Mapping[str, Any], options: GenerationOptions) -> list[str] | None:
    """The choices that a command is given, if it is; ConfigError beside what nothing reads."""
    choices: list[str] | None = parameters["choices"]
    if not choices:
        return None
    given = [flag for name, flag in _OF_GENERATION.items() if parameters[name]]
    given += [arguments.flag(name) for name in _unread(options)]
    if given:
        raise _nothing_reads(given[0])
    return choices


def show_choice(
    runtime: "Runtime",
    prompt: "Prompt",
    choices: Sequence[str],
    options: GenerationOptions,
    *,
    as_json: bool,
    stats: bool,
) -> dict[str, Any]:
    """Write the most probable choice, or one JSON object with all of them; the run's report."""
    with waiting("reading the prompt"):
        result = _choose(runtime, prompt, choices, options)
    if as_json:
        print_json(result.to_dict())
    else:
        write_stdout(result.choice + "\n")
    if stats:
        rows = stats_rows(result)
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            say((f"{label:{width}}", "dim"), f"  {value}")
    return {"probabilities": dict(result.probabilities), **asdict(result.stats)}


def stats_rows(result: "ChoiceResult") -> list[tuple[str, str]]:
    """The choices, the best first, and what they cost, as (label, value) pairs."""
    stats, ranked = result.stats, sorted(result.probabilities.items(), key=lambda item: -item[1])
    canvases = stats.branchings * stats.noises
    return [
        *((f"{probability:.4f}", choice) for choice, probability in ranked),
        ("prompt", f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.2f} s"),
        ("choosing", f"{stats.passes} passes in {stats.choosing_seconds:.2f} s"),
        ("canvases", f"{canvases} of {stats.canvas_length} positions, {stats.noises} noises"),
        ("model load", f"{stats.load_seconds:.2f} s"),
        ("seed", str(stats.seed)),
    ]


def choosing(
    runtime: "Runtime", choices: Sequence[str]
) -> "Callable[[Iterator[BatchRequest]], Iterator[RowAnswer]]":
    """What answers the requests of a file by choosing, one after the other."""
    from mlx_diffusiongemma.batch_file import RowAnswer

    def answers(requests: "Iterator[BatchRequest]") -> "Iterator[RowAnswer]":
        passes = 0
        for index, request in enumerate(requests):
            outcome: ChoiceResult | DGemmaError
            try:
                unread = _unread(request.options)
                if unread:
                    raise _nothing_reads(unread[0])
                outcome = _choose(runtime, request.prompt, choices, request.options)
                passes += outcome.stats.passes
            except DGemmaError as error:
                outcome = error
            yield RowAnswer(index, outcome, passes)

    return answers


def _choose(
    runtime: "Runtime", prompt: "Prompt", choices: Sequence[str], options: GenerationOptions
) -> "ChoiceResult":
    seed = 0 if options.seed is None else options.seed
    try:
        return runtime.choose(prompt, choices, seed=seed, chat_template=options.chat_template)
    except ConstraintError as error:
        raise ConstraintError(f"--choices: {error}", hint=error.hint) from None


def _unread(options: GenerationOptions) -> list[str]:
    """What the options ask of a generation."""
    asked = vars(options)
    return [f.name for f in fields(options) if f.name not in _READ and asked[f.name] != f.default]


def _nothing_reads(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is given with --choices",
        hint="choices are compared, and nothing is generated: leave it out",
    )
