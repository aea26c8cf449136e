"""A process that answers what a soak asks for, and says what each answer did to it.

usage: python -m mlx_diffusiongemma.bench.soak_worker MODEL

A request is a number of `soak_mix.MIX`. A reply: seconds, cpu_seconds, resident_bytes and
active_bytes (MLX's) afterwards, and outcome, a fingerprint of all that was seen of the answer.
"""

import asyncio
import contextlib
import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import islice
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.bench.process import serve
from mlx_diffusiongemma.bench.soak_mix import MIX, Shape
from mlx_diffusiongemma.errors import DGemmaError
from mlx_diffusiongemma.events import (
    BlockCommitted,
    DenoisingStep,
    Event,
    Finished,
    PromptProcessed,
    TokenWritten,
)
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.runtime import Runtime, load
from mlx_diffusiongemma.session import Session
from mlx_diffusiongemma.version import __version__


class ReaderError(Exception):
    """Whoever reads an answer fails while it is written."""


class SoakWorker:
    """Answers shapes with one runtime, and keeps one session among them."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._kept: Session = runtime.session()
        self._kinds: Mapping[str, Callable[[Shape, GenerationOptions], str]] = {
            "answer": self._answer,
            "cancel": self._cancel,
            "failing": self._failing,
            "session": self._session,
            "kept": self._in_kept_session,
            "bounded": self._in_bounded_session,
            "astream": self._astream,
        }

    def reply(self, number: int) -> dict[str, Any]:
        """Answer shape `number` of the mix."""
        shape = MIX[number]
        started, busy = time.perf_counter(), time.process_time()
        try:
            options = GenerationOptions(**dict(shape.options) | {"seed": number})
            outcome = self._kinds[shape.kind](shape, options)
        except DGemmaError as error:  # some shapes are meant to be refused
            outcome = f"{type(error).__name__}: {error}"
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        return {
            "seconds": seconds,
            "cpu_seconds": busy,
            "resident_bytes": resident_bytes(),
            "active_bytes": mx.get_active_memory(),
            "outcome": hashlib.sha256(outcome.encode()).hexdigest()[:16],
        }

    def _answer(self, shape: Shape, options: GenerationOptions) -> str:
        return self._read(shape, self._runtime.stream(shape.prompts[0], options))

    def _cancel(self, shape: Shape, options: GenerationOptions) -> str:
        with contextlib.closing(self._runtime.stream(shape.prompts[0], options)) as stream:
            return self._read(shape, islice(stream, shape.events))

    def _failing(self, shape: Shape, options: GenerationOptions) -> str:
        def failing() -> Iterator[Event]:
            for index, event in enumerate(self._runtime.stream(shape.prompts[0], options)):
                if index == shape.events:
                    raise ReaderError
                yield event

        try:
            return self._read(shape, failing())
        except ReaderError:
            return "failed"

    def _session(self, shape: Shape, options: GenerationOptions) -> str:
        session = self._runtime.session()
        return "".join(self._read(shape, session.stream(p, options)) for p in shape.prompts)

    def _in_kept_session(self, shape: Shape, options: GenerationOptions) -> str:
        if len(self._kept.messages) > 2:  # of the round before
            self._kept = self._runtime.session()
        return self._read(shape, self._kept.stream(shape.prompts[0], options))

    def _in_bounded_session(self, shape: Shape, options: GenerationOptions) -> str:
        session = self._runtime.session(max_context=300)
        return self._read(shape, session.stream(shape.prompts[0], options))

    def _astream(self, shape: Shape, options: GenerationOptions) -> str:
        async def collect() -> list[Event]:
            return [event async for event in self._runtime.astream(shape.prompts[0], options)]

        return self._read(shape, asyncio.run(collect()))

    def _read(self, shape: Shape, events: Iterable[Event]) -> str:
        """All that an answer showed; the last step's canvas where it came to no end."""
        seen, last = [], None
        for event in events:
            match event:
                case PromptProcessed():
                    seen.append(f"{event.cached_tokens}/{event.prompt_tokens}")
                case DenoisingStep():
                    last = event
                    if shape.watch:
                        seen.append(self._runtime.tokenizer.decode(_canvas(event)))
                case BlockCommitted() | TokenWritten():
                    seen.append(event.text)
                case Finished(result):
                    seen.append(f"{result.finish_reason} {result.token_ids}")
        return "\n".join([*seen, str(last and _canvas(last))])


def _canvas(step: DenoisingStep) -> list[int]:
    canvas: list[int] = step.argmax_canvas[0].tolist()  # type: ignore[assignment]
    return canvas


def resident_bytes() -> int:
    """Memory that this process has now, not at its highest."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # macOS
        command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(shown.stdout) * 1024


def main() -> None:
    """Serve until standard input ends."""
    worker = SoakWorker(load(sys.argv[1], force=True))
    hello = {
        "device": str(mx.default_device().type).rpartition(".")[2],
        "version": __version__,
        "mlx": version("mlx"),
    }
    serve(hello, lambda request: worker.reply(request["shape"]))


if __name__ == "__main__":
    main()
