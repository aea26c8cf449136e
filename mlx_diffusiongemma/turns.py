"""Whose turn it is to compute: one request at a time, in the order in which they ask.

A turn is one event of a generation, usually a denoising step. So requests that run at the same
time advance step by step, in any threads, and none waits for another to end.

All turns use one stream, so the device is asked for one thing at a time. MLX makes a stream for
each thread all the same, and never takes it back: ask from a few threads that live long.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import mlx.core as mx

from mlx_diffusiongemma.events import Event


class FairLock:
    """A lock that goes to whoever has waited the longest, which `threading.Lock` does not promise.

    Not reentrant. A thread that is interrupted while it waits leaves the queue.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[threading.Event] = deque()  # the first holds the lock

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait in the queue, and hold the lock."""
        ticket = threading.Event()
        try:
            with self._guard:
                self._queue.append(ticket)
                self._queue[0].set()
            ticket.wait()
            yield
        finally:
            with self._guard:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                if self._queue:
                    self._queue[0].set()


_QUEUE = FairLock()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait for a turn, and compute on the common stream until the end of the block."""
    with _QUEUE.held(), mx.stream(_stream(mx.default_device().type)):
        yield


@cache
def _stream(device: mx.DeviceType) -> mx.Stream:
    return mx.new_thread_unsafe_stream(device)


async def in_background(
    start: Callable[[], Generator[Event, None, None]],
) -> AsyncGenerator[Event, None]:
    """The events of the generator that `start` makes, computed beside the event loop.

    One thread serves all such generators, event by event in turn. Closing this one, or cancelling
    the task that waits for it, closes the generator after the step that is being computed.
    """
    loop, worker = asyncio.get_running_loop(), _worker()
    events = await loop.run_in_executor(worker, start)
    try:
        while (event := await loop.run_in_executor(worker, next, events, None)) is not None:
            yield event
    finally:
        worker.submit(events.close)


@cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="mlx-diffusiongemma")
