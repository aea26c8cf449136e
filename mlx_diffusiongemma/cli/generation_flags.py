"""The flags that say how an answer is written, for every command that writes one."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mlx_diffusiongemma.cli import arguments, dial_arguments

# By the field of `GenerationOptions` that each sets, in the order of the help.
_FLAGS: dict[str, Any] = {
    "thinking": arguments.Thinking,
    "chat_template": arguments.ChatTemplate,
    "retry_empty": arguments.RetryEmpty,
    "max_tokens": arguments.MaxTokens,
    "seed": arguments.Seed,
    "stop": arguments.Stop,
    "max_denoising_steps": arguments.Steps,
    "entropy_bound": arguments.EntropyBound,
    "t_min": arguments.TMin,
    "t_max": arguments.TMax,
    "stability_threshold": arguments.StabilityThreshold,
    "confidence_threshold": arguments.ConfidenceThreshold,
    "preset": dial_arguments.Preset,
    "stop_rule": dial_arguments.Stopping,
    "min_denoising_steps": dial_arguments.MinSteps,
    "sampler": dial_arguments.Sampler,
    "accept_probability": dial_arguments.AcceptProbability,
    "keep_probability": dial_arguments.KeepProbability,
    "canvas_length": dial_arguments.CanvasLength,
    "shrink_canvas": dial_arguments.ShrinkCanvas,
    "fast_self_conditioning": dial_arguments.FastSelfConditioning,
    "deadline_ms": dial_arguments.Deadline,
    "mode": dial_arguments.WriteMode,
    "temperature": dial_arguments.Temperature,
    "top_p": dial_arguments.TopP,
    "top_k": dial_arguments.TopK,
    "min_p": dial_arguments.MinP,
}


def takes_generation_flags(
    *, after: str, without: frozenset[str] = frozenset()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags, behind its parameter `after`.

    The command finds them in its context: `arguments.generation_options(context.params)`.
    """
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _FLAGS.items()
        if name not in without
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
        ]
        names = [parameter.name for parameter in own]
        place = names.index(after) + 1

        @functools.wraps(command)
        def with_flags(**parameters: Any) -> None:
            command(**{name: parameters[name] for name in names})

        parameters = [*own[:place], *flags, *own[place:]]
        vars(with_flags)["__signature__"] = inspect.Signature(parameters)
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return add
