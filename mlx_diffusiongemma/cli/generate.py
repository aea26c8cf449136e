"""`dgemma-mlx generate`: one answer to one prompt."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_diffusiongemma.cli import arguments, batch_flags, choice, constraint_flags
from mlx_diffusiongemma.cli.console import print_json
from mlx_diffusiongemma.cli.generation_flags import takes_generation_flags
from mlx_diffusiongemma.cli.loading import open_runtime
from mlx_diffusiongemma.errors import ConfigError, PromptError
from mlx_diffusiongemma.hub import DEFAULT_MODEL
from mlx_diffusiongemma.options import GenerationOptions

if TYPE_CHECKING:
    from mlx_diffusiongemma.runtime import Runtime


@takes_generation_flags(after="system")
def generate_command(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="Prompt text, or - to read standard input.", show_default=False
        ),
    ] = None,
    model: arguments.Model = None,
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
    system: arguments.System = None,
    regex: constraint_flags.Regex = None,
    json_schema: constraint_flags.JsonSchema = None,
    choices: constraint_flags.Choices = None,
    scaffold: constraint_flags.Scaffold = None,
    batch_file: batch_flags.BatchFile = None,
    out: batch_flags.Out = None,
    rows: batch_flags.Rows = None,
    prompt_cache_file: arguments.PromptCache = None,
    watch: arguments.Watch = False,
    stats: arguments.Stats = False,
    report: arguments.Report = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Write an answer to PROMPT.

    The answer goes to standard output, everything else to standard error.
    """
    constraint = constraint_flags.constraint_of(context.params)
    options = arguments.generation_options({**context.params, "constraint": constraint})
    arguments.check_watch(watch, options)
    given = choice.choices_of(context.params, options)
    job = batch_flags.job_of(context.params)
    load = partial(open_runtime, model, revision=revision, dtype=dtype, force=force)
    if job is not None:
        from mlx_diffusiongemma.cli.batch_job import run_job

        run_job(job, options, load, given)
        return
    if prompt is None:
        context.fail("Missing argument 'PROMPT'.")
    messages = _messages(prompt, system, options.chat_template)
    runtime = load()
    show = {"as_json": as_json, "stats": stats}
    if given is None:
        cost = _write(runtime, messages, options, prompt_cache_file, watch=watch, **show)
    else:
        cost = choice.show_choice(runtime, messages, given, options, **show)
    if report is not None:
        from mlx_diffusiongemma.cli.render import write_report

        write_report(report, DEFAULT_MODEL if model is None else model, cost)


def _write(
    runtime: "Runtime",
    messages: str | list[dict[str, str]],
    options: GenerationOptions,
    prompt_cache_file: Path | None,
    *,
    as_json: bool,
    watch: bool,
    stats: bool,
) -> dict[str, Any]:
    """Show the answer as it comes, reading the prompt from its cache file if there is one.

    Returns what the report says.
    """
    from mlx_diffusiongemma.cli.prompt_cache import PromptCacheFile
    from mlx_diffusiongemma.cli.render import show_answer

    if prompt_cache_file is None:
        events = runtime.stream(messages, options)
    else:
        session = runtime.session()
        file = PromptCacheFile(prompt_cache_file, session)
        events = file.follow(session.stream(messages, options))
    stop, text = options.stop, not as_json
    result = show_answer(
        events, runtime.tokenizer, write_text=text, watch=watch, stats=stats, stop=stop
    )
    if as_json:
        print_json(result.to_dict())
    return {"finish_reason": result.finish_reason, **result.stats.to_dict()}


def _messages(prompt: str, system: str | None, chat_template: bool) -> str | list[dict[str, str]]:
    """What the runtime is asked: the bare prompt, or messages when there is a system message."""
    if system is not None and not chat_template:
        raise ConfigError(
            "--system is given with --no-chat-template",
            hint="only a chat template has a place for it; write it into PROMPT",
        )
    where, text = ("PROMPT", prompt) if prompt != "-" else ("standard input", sys.stdin.read())
    arguments.check_text(where, text)
    if not text.strip():
        raise PromptError(f"{where} is empty", hint="say what the model should answer")
    if system is None:
        return text
    arguments.check_text("--system", system)
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]
