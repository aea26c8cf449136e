"""From a name to a loaded model, and from a prompt to text.

    load("demo") --> Runtime.stream(prompt, options) --> events --> Finished(result)

The token loop yields events; here they meet the tokenizer and the clock.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from mlx_diffusiongemma import device, hub
from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.checkpoint import plan_tensors, read_tensors
from mlx_diffusiongemma.config import (
    GenerationConfig,
    ModelConfig,
    read_config,
    read_generation_config,
)
from mlx_diffusiongemma.draws import Draws, SeededDraws
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.events import (
    BlockCommitted,
    DenoisingStep,
    Event,
    Finished,
    GenerationResult,
    GenerationStats,
    PromptProcessed,
)
from mlx_diffusiongemma.generation import generate_blocks
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings
from mlx_diffusiongemma.text import Message, Tokenizer
from mlx_diffusiongemma.weights import load_weights

Prompt = str | Sequence[Message]
_DEFAULTS = GenerationOptions()


def load(
    name: str | Path = hub.DEFAULT_MODEL,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    force: bool = False,
    max_context: int | None = None,
    on_plan: Callable[[hub.DownloadPlan], None] | None = None,
    progress: Callable[[hub.DownloadProgress], None] | None = None,
) -> "Runtime":
    """Load a model with its tokenizer, ready to generate.

    Args:
        name: "demo" (the model in this package), a folder, or a Hub id "org/name", which is
            downloaded when it is not in the local cache.
        revision: branch, tag or commit of a Hub id.
        dtype: "float32", "float16" or "bfloat16" to compute in; None takes what suits the device.
        force: load even when the memory looks too small.
        max_context: tokens of prompt and answer to make room for in the memory check.
        on_plan, progress: told what will be downloaded, and how far it is.

    Raises:
        HubError, CheckpointError, ConfigError, MemoryNeedError: each says what to do.
    """
    device.check_dtype_name(dtype)

    def announce(plan: hub.DownloadPlan) -> None:
        if on_plan is not None:
            on_plan(plan)
        if not force:  # before an hour of downloading, not after it
            device.check_download(plan.total_bytes)

    folder = hub.resolve(str(name), revision=revision, progress=progress, on_plan=announce)
    started = time.perf_counter()
    config, generation_config = read_config(folder), read_generation_config(folder)
    model = load_model(folder, dtype=dtype, force=force, max_context=max_context)
    tokenizer = Tokenizer.load(folder)
    return Runtime(
        model=model,
        tokenizer=tokenizer,
        config=config,
        generation_config=generation_config,
        load_seconds=time.perf_counter() - started,
    )


def load_model(
    path: str | Path,
    *,
    dtype: str | None = None,
    force: bool = False,
    max_context: int | None = None,
) -> DiffusionGemma:
    """Load the model of a folder (or "demo") alone; it needs no tokenizer. See `load`."""
    folder = hub.resolve(str(path))
    config = read_config(folder)
    compute = device.compute_dtype(config, dtype)
    if not force:
        context = device.DEFAULT_CONTEXT if max_context is None else max_context
        tensors = plan_tensors(read_tensors(folder)).used.values()
        need = device.memory_need(config, tensors, compute, context)
        device.check_memory(config, need, device.available_memory())
    return load_weights(config, folder, compute)


class Runtime:
    """A loaded model that answers prompts.

    Attributes:
        model: the network, for people who write their own samplers.
        tokenizer: text to token ids and back.
        config: the checkpoint's architecture.
        generation_config: its sampler settings and end tokens.
        load_seconds: how long loading took, downloads aside.
    """

    def __init__(
        self,
        *,
        model: DiffusionGemma,
        tokenizer: Tokenizer,
        config: ModelConfig,
        generation_config: GenerationConfig,
        load_seconds: float,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.generation_config = generation_config
        self.load_seconds = load_seconds

    def generate(
        self, prompt: Prompt, options: GenerationOptions = _DEFAULTS, *, draws: Draws | None = None
    ) -> GenerationResult:
        """Answer a prompt; see `stream`."""
        for event in self.stream(prompt, options, draws=draws):
            if isinstance(event, Finished):
                return event.result
        raise AssertionError("a stream ends with Finished")

    def stream(
        self, prompt: Prompt, options: GenerationOptions = _DEFAULTS, *, draws: Draws | None = None
    ) -> Iterator[Event]:
        """Answer a prompt, reporting as it goes.

        Args:
            prompt: text, which becomes one user message, or a list of messages: mappings with
                "role" (system, user, assistant) and "content".
            options: what to ask of this generation.
            draws: where random tokens come from; None draws from `options.seed`. For replaying a
                recorded trace.

        Yields:
            `PromptProcessed`, then for every canvas `DenoisingStep` events and a `BlockCommitted`,
            at last `Finished` with the result. Closing the iterator cancels the generation and
            leaves nothing behind.

        Raises:
            PromptError: the prompt cannot be read.
            GenerationError: the logits are not numbers.
        """
        if not isinstance(options, GenerationOptions):
            raise ConfigError(
                f"options are {options!r}", hint="give a GenerationOptions, or leave them out"
            )
        prompt_ids = self.tokenizer.encode_prompt(
            prompt, chat_template=options.chat_template, thinking=options.thinking
        )
        settings = self.generation_config.sampler.with_options(options)
        seed = secrets.randbits(32) if options.seed is None else options.seed
        return self._run(prompt_ids, options, settings, seed, draws or SeededDraws(seed))

    def _run(
        self,
        prompt_ids: list[int],
        options: GenerationOptions,
        settings: SamplerSettings,
        seed: int,
        draws: Draws,
    ) -> Iterator[Event]:
        mx.reset_peak_memory()
        answer = AnswerStream(self.tokenizer, options.stop, prompt_ids=prompt_ids)
        record = _Record()
        blocks = generate_blocks(
            self.model,
            prompt_ids,
            draws=draws,
            settings=settings,
            max_tokens=options.max_tokens,
            eos_token_ids=self.generation_config.eos_token_ids | self.tokenizer.eos_token_ids,
        )
        try:
            for event in record.timed(blocks):
                if isinstance(event, BlockCommitted):
                    event = _with_text(event, answer)
                    record.add(event)
                yield event
                if isinstance(event, BlockCommitted) and event.finish_reason is not None:
                    break
        finally:
            blocks.close()
        yield Finished(self._result(answer, record, len(prompt_ids), seed))

    def _result(
        self, answer: AnswerStream, record: "_Record", prompt_tokens: int, seed: int
    ) -> GenerationResult:
        last = record.blocks[-1]
        assert last.finish_reason is not None
        token_ids = tuple(token for block in record.blocks for token in block.token_ids)
        return GenerationResult(
            text=answer.text,
            thought=answer.thought,
            tool_calls=answer.tool_calls,
            token_ids=token_ids,
            finish_reason=last.finish_reason,
            stats=GenerationStats(
                prompt_tokens=prompt_tokens,
                generated_tokens=len(token_ids),
                denoising_steps=tuple(block.denoising_steps for block in record.blocks),
                converged=tuple(block.converged for block in record.blocks),
                seed=seed,
                load_seconds=self.load_seconds,
                prefill_seconds=record.prefill_seconds,
                denoising_seconds=record.denoising_seconds,
                peak_memory_bytes=mx.get_peak_memory(),
            ),
        )


def _with_text(block: BlockCommitted, answer: AnswerStream) -> BlockCommitted:
    """The block with the text it makes certain; cut short where a stop string ends the answer."""
    before = answer.token_count
    delta = answer.add(block.token_ids)
    text, thought, reason = delta.text, delta.thought, block.finish_reason
    if delta.stopped:
        reason = "stop"
    if reason is not None:
        rest = answer.finish()
        text, thought = text + rest.text, thought + rest.thought
        if rest.stopped:
            reason = "stop"
    kept = block.token_ids[: answer.token_count - before]
    return replace(block, token_ids=kept, finish_reason=reason, text=text, thought=thought)


class _Record:
    """The blocks of one answer and the time spent making them; a consumer's own time is not."""

    def __init__(self) -> None:
        self.blocks: list[BlockCommitted] = []
        self.prefill_seconds = 0.0
        self.denoising_seconds = 0.0

    def add(self, block: BlockCommitted) -> None:
        self.blocks.append(block)

    def timed(
        self, events: Iterator[PromptProcessed | DenoisingStep | BlockCommitted]
    ) -> Iterator[PromptProcessed | DenoisingStep | BlockCommitted]:
        while True:
            started = time.perf_counter()
            event = next(events, None)
            spent = time.perf_counter() - started
            if event is None:
                return
            if isinstance(event, PromptProcessed):
                self.prefill_seconds += spent
            else:
                self.denoising_seconds += spent
            yield event
