"""`dgemma-mlx chat`: a conversation with history that can be edited."""

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.conversation import Conversation
from mlx_diffusiongemma.cli.loading import open_runtime


def chat_command(
    context: typer.Context,
    model: arguments.Model = None,
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
    system: arguments.System = None,
    thinking: arguments.Thinking = None,
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
    prompt_cache_file: arguments.PromptCache = None,
    watch: arguments.Watch = False,
    stats: arguments.Stats = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Talk with the model.

    /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves. Input that is piped in is
    read line by line.
    """
    options = arguments.generation_options(context.params)
    if system is not None:
        arguments.check_text("--system", system)
    runtime = open_runtime(model, revision=revision, dtype=dtype, force=force)

    from mlx_diffusiongemma.cli.chat_loop import Chat

    Chat(
        runtime,
        options,
        Conversation(system),
        prompt_cache_file=prompt_cache_file,
        watch=watch,
        stats=stats,
    ).run()
