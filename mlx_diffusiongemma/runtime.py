"""From a name to a loaded model, and from a prompt to text.

load("demo") --> Runtime.stream(prompt, options) --> events --> Finished(result)
             --> Runtime.session().stream(message)
             --> Runtime.generate_batch(prompts, options) --> results
"""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_diffusiongemma import device, first_use, hub
from mlx_diffusiongemma.batch import Batch, BatchAnswer, BatchRequest, requests_for
from mlx_diffusiongemma.checkpoint import plan_tensors, read_tensors
from mlx_diffusiongemma.choosing import NOISES, ChoiceResult, choose
from mlx_diffusiongemma.config import (
    GenerationConfig,
    ModelConfig,
    read_config,
    read_generation_config,
)
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import DGemmaError
from mlx_diffusiongemma.events import Event, GenerationResult
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.experts import probe_experts
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.range_check import RangeCheck
from mlx_diffusiongemma.responder import Prompt, Responder, result_of
from mlx_diffusiongemma.session import Session
from mlx_diffusiongemma.session_memory import SessionMemory
from mlx_diffusiongemma.text import Tokenizer
from mlx_diffusiongemma.turns import in_background
from mlx_diffusiongemma.weights import load_weights

_DEFAULTS = GenerationOptions()
_MOST_ROWS = 8  # unless more are asked for: with these the products are large enough


def load(
    name: str | Path = hub.DEFAULT_MODEL,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    force: bool = False,
    max_context: int | None = None,
    measure: bool = True,
    on_plan: Callable[[hub.DownloadPlan], None] | None = None,
    progress: Callable[[hub.DownloadProgress], None] | None = None,
) -> "Runtime":
    """Load a model with its tokenizer, ready to generate.

    Args:
        name: "demo" (in this package), a folder, or a Hub id "org/name", downloaded unless cached.
        revision: branch, tag or commit of a Hub id.
        dtype: "float32", "float16" or "bfloat16" to compute in; None takes what suits the device.
        force: load even when the memory looks too small.
        max_context: tokens of prompt and answer to make room for in the memory check.
        measure: on a GPU, time kernels that were never timed on it: once, see docs/kernels.md.
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
    first_use.prepare(model, measure=measure)
    tokenizer = Tokenizer.load(folder)
    return Runtime(
        model=model,
        tokenizer=tokenizer,
        config=config,
        generation_config=generation_config,
        load_seconds=time.perf_counter() - started,
        check_range=dtype is None and device.narrows(config),
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
    device.wire_memory()
    model = load_weights(config, folder, compute)
    probe_experts(model, compute)
    return model


def _weight_bytes(model: DiffusionGemma) -> int:
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    return sum(array.nbytes for array in arrays.values())


def _room_for_sessions(model: DiffusionGemma) -> int:
    return max(device.available_memory() - _weight_bytes(model), 0) // 2


class Runtime:
    """A loaded model that answers prompts.

    Attributes:
        model: the network, for people who write their own samplers.
        tokenizer: text to token ids and back.
        config: the checkpoint's architecture.
        generation_config: its sampler settings and end tokens.
        load_seconds: how long loading took, downloads aside.
        session_memory: what all sessions may keep together, at first half of what is left free.

    `check_range` has the first prompt decide whether its activations fit float16; see
    `range_check`.
    """

    def __init__(
        self,
        *,
        model: DiffusionGemma,
        tokenizer: Tokenizer,
        config: ModelConfig,
        generation_config: GenerationConfig,
        load_seconds: float,
        check_range: bool = False,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.generation_config = generation_config
        self.load_seconds = load_seconds
        self.session_memory = SessionMemory(_room_for_sessions(model))
        self._responder = Responder(
            model,
            tokenizer,
            generation_config,
            load_seconds,
            range_check=RangeCheck(model) if check_range else None,
        )

    @property
    def fingerprint(self) -> str:
        """Differs between models whose answers differ: samples of the weights, dtype, template."""
        identity = self._responder.identity
        return f"{identity.model}.{identity.template}"

    def generate(
        self, prompt: Prompt, options: GenerationOptions = _DEFAULTS, *, draws: Draws | None = None
    ) -> GenerationResult:
        """Answer a prompt; see `stream`."""
        return result_of(self.stream(prompt, options, draws=draws))

    def stream(
        self, prompt: Prompt, options: GenerationOptions = _DEFAULTS, *, draws: Draws | None = None
    ) -> Generator[Event, None, None]:
        """Answer a prompt, reporting as it goes.

        Args:
            prompt: text, which becomes one user message, or a list of messages: mappings with
                "role" (system, user, assistant) and "content".
            options: what to ask of this generation.
            draws: where random tokens come from; None draws from `options.seed`. For replaying a
                recorded trace.

        Yields:
            `PromptProcessed`, then for every canvas `DenoisingStep` events and a `BlockCommitted`,
            or in mode "ar" a `TokenWritten` for every token, at last `Finished` with the result.
            Closing the iterator cancels the generation and leaves nothing behind.

        Raises:
            PromptError: the prompt cannot be read.
            GenerationError: the logits are not numbers.
        """
        prompt_ids = self._responder.encode(prompt, options)
        return self._responder.answer(prompt_ids, options, draws)

    def astream(
        self, prompt: Prompt, options: GenerationOptions = _DEFAULTS, *, draws: Draws | None = None
    ) -> AsyncGenerator[Event, None]:
        """`stream` for asyncio: the event loop is free while a step is computed.

        Requests that run at the same time advance in turn, step by step. Cancelling the task, or
        closing the iterator, cancels the generation. What `stream` raises is raised at the first
        event.
        """
        return in_background(lambda: self.stream(prompt, options, draws=draws))

    def choose(
        self,
        prompt: Prompt,
        choices: Sequence[str],
        *,
        seed: int = 0,
        noises: int = NOISES,
        chat_template: bool = True,
    ) -> ChoiceResult:
        """Which of some texts the model would answer with, and how probable each one is.

        Nothing is generated: one pass over short canvases sees where the choices part, see
        docs/constraints.md.

        Args:
            prompt, chat_template: as for `stream`.
            choices: two texts or more, all different, none longer than a canvas.
            seed: of the noise that the model sees behind what is written.
            noises: how many noises are averaged, in the same pass.

        Raises:
            ConstraintError: the choices are none to choose from; it names one.
        """
        responder = self._responder
        return choose(
            responder, prompt, choices, seed=seed, noises=noises, chat_template=chat_template
        )

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        options: GenerationOptions | Sequence[GenerationOptions] = _DEFAULTS,
        *,
        rows: int | None = None,
    ) -> list[GenerationResult | DGemmaError]:
        """Answer many prompts, several at a time, each with its own canvases and its own end.

        Args:
            prompts: as for `stream`, in any number.
            options: for all of them, or one for each. Every answer is the one that `generate`
                gives with the same options and seed.
            rows: how many are answered at once; None is as many as fit into memory, at most 8.

        Returns:
            What became of each prompt, in their order: a result, or the error of that prompt.

        Raises:
            ConfigError: `prompts` is one text, `options` are not as many as the prompts, or `rows`
                is no number of rows.
        """
        requests = requests_for(prompts, options)
        answers = {answer.index: answer for answer in self.stream_batch(requests, rows=rows)}
        return [answers[index].outcome for index in range(len(prompts))]

    def stream_batch(
        self, requests: Iterable[BatchRequest], *, rows: int | None = None
    ) -> Generator[BatchAnswer, None, None]:
        """Answer requests, several at a time; see `generate_batch`.

        A request is taken from `requests` when a row is free, so they may be endless. Closing the
        iterator cancels what is being answered.

        Yields:
            A `BatchAnswer` for each, in the order in which they end.
        """
        most = self._rows_that_fit() if rows is None else rows
        return Batch(self._responder, requests, most).answers()

    def _rows_that_fit(self) -> int:
        available = device.available_memory() - _weight_bytes(self.model)
        dtype = self.model.compute_dtype
        need = device.memory_need(self.config, [], dtype, device.DEFAULT_CONTEXT)
        return min(device.rows_that_fit(self.config, need, available), _MOST_ROWS)

    def session(
        self, *, max_context: int | None = None, rewind_tokens: int | None = None
    ) -> Session:
        """A conversation that keeps what it has read; any number of them share the model.

        Args:
            max_context: most tokens of history and answer, which bounds its memory; None is the
                model's own limit.
            rewind_tokens: how far back an edit may reach, from wherever the conversation is,
                without reading anything twice; further back, reading begins at the last turn that
                is still marked. None is the length of the sliding window.
        """
        return Session(
            self._responder,
            self.session_memory,
            max_context=max_context,
            rewind_tokens=rewind_tokens,
        )
