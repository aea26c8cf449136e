"""`dgemma-mlx chat`: a conversation with history that can be edited."""

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.conversation import Conversation
from mlx_diffusiongemma.cli.generation_flags import takes_generation_flags
from mlx_diffusiongemma.cli.loading import open_runtime


@takes_generation_flags(after="system", without=frozenset({"chat_template"}))
def chat_command(
    context: typer.Context,
    model: arguments.Model = None,
    revision: arguments.Revision = None,
    dtype: arguments.Dtype = None,
    force: arguments.Force = False,
    system: arguments.System = None,
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
    arguments.check_watch(watch, options)
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
