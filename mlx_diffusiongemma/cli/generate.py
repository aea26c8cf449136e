"""`dgemma-mlx generate`: one answer to one prompt."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_diffusiongemma.cli import arguments, dial_arguments
from mlx_diffusiongemma.cli.console import print_json
from mlx_diffusiongemma.cli.loading import open_runtime
from mlx_diffusiongemma.errors import ConfigError, PromptError
from mlx_diffusiongemma.hub import DEFAULT_MODEL
from mlx_diffusiongemma.options import GenerationOptions

if TYPE_CHECKING:
    from mlx_diffusiongemma.events import GenerationResult
    from mlx_diffusiongemma.runtime import Runtime


def generate_command(
    context: typer.Context,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Prompt text, or - to read standard input.")
    ],
    model: arguments.Model = None,
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
    system: arguments.System = None,
    thinking: arguments.Thinking = None,
    chat_template: arguments.ChatTemplate = None,
    retry_empty: arguments.RetryEmpty = None,
    max_tokens: arguments.MaxTokens = None,
    seed: arguments.Seed = None,
    stop: arguments.Stop = None,
    max_denoising_steps: arguments.Steps = None,
    entropy_bound: arguments.EntropyBound = None,
    t_min: arguments.TMin = None,
    t_max: arguments.TMax = None,
    stability_threshold: arguments.StabilityThreshold = None,
    confidence_threshold: arguments.ConfidenceThreshold = None,
    preset: dial_arguments.Preset = None,
    stop_rule: dial_arguments.Stopping = None,
    min_denoising_steps: dial_arguments.MinSteps = None,
    sampler: dial_arguments.Sampler = None,
    accept_probability: dial_arguments.AcceptProbability = None,
    keep_probability: dial_arguments.KeepProbability = None,
    canvas_length: dial_arguments.CanvasLength = None,
    shrink_canvas: dial_arguments.ShrinkCanvas = None,
    deadline_ms: dial_arguments.Deadline = None,
    mode: dial_arguments.WriteMode = None,
    temperature: dial_arguments.Temperature = None,
    top_p: dial_arguments.TopP = None,
    top_k: dial_arguments.TopK = None,
    min_p: dial_arguments.MinP = None,
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
    options = arguments.generation_options(context.params)
    _check_watch(watch, options)
    messages = _messages(prompt, system, chat_template is not False)
    runtime = open_runtime(model, revision=revision, dtype=dtype, force=force)
    result = _write(
        runtime, messages, options, prompt_cache_file, text=not as_json, watch=watch, stats=stats
    )
    if as_json:
        print_json(result.to_dict())
    if report is not None:
        from mlx_diffusiongemma.cli.render import write_report

        write_report(report, DEFAULT_MODEL if model is None else model, result)


def _check_watch(watch: bool, options: GenerationOptions) -> None:
    if watch and options.mode == "ar":
        raise ConfigError(
            "--watch is given and --mode is 'ar'", hint="there is no canvas to draw; leave one out"
        )


def _write(
    runtime: "Runtime",
    messages: str | list[dict[str, str]],
    options: GenerationOptions,
    prompt_cache_file: Path | None,
    *,
    text: bool,
    watch: bool,
    stats: bool,
) -> "GenerationResult":
    """Show the answer as it comes, reading the prompt from its cache file if there is one."""
    from mlx_diffusiongemma.cli.prompt_cache import PromptCacheFile
    from mlx_diffusiongemma.cli.render import show_answer

    if prompt_cache_file is None:
        events = runtime.stream(messages, options)
    else:
        session = runtime.session()
        file = PromptCacheFile(prompt_cache_file, session)
        events = file.follow(session.stream(messages, options))
    return show_answer(
        events, runtime.tokenizer, write_text=text, watch=watch, stats=stats, stop=options.stop
    )


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
