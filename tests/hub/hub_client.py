"""A process that resolves models, because huggingface_hub reads its environment only once.

Each line of standard input is a call as JSON, each line of standard output what came of it. It can
reach loopback only, and waits for hundredths of a second where people wait for seconds.
"""

import errno
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from huggingface_hub import close_session, constants

from mlx_diffusiongemma import hub, hub_cache
from mlx_diffusiongemma.errors import DGemmaError

_connect = socket.socket.connect


def _connect_inside(self: socket.socket, address: Any) -> None:
    if address[0] != "127.0.0.1":
        raise AssertionError(f"a request left loopback for {address}")
    _connect(self, address)


def _no_name(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _full_disk(*_: object) -> Iterator[int]:
    yield 0
    raise OSError(errno.ENOSPC, "No space left on device")


def conditions(call: dict[str, Any]) -> Iterator[Any]:
    """What is different during this call."""
    yield patch.object(hub, "RETRY_SECONDS", call.get("retry", (0.01, 0.01)))
    if "token" in call:
        yield patch.dict("os.environ", HF_TOKEN=call["token"])
    if "endpoint" in call:
        yield patch.object(constants, "ENDPOINT", call["endpoint"])
    if call.get("offline"):
        yield patch.object(constants, "HF_HUB_OFFLINE", True)
    if call.get("no_dns"):
        close_session()  # its open connections need no name
        yield patch("socket.getaddrinfo", _no_name)
    if "free" in call:
        disk = SimpleNamespace(free=call["free"])
        yield patch.object(hub_cache, "shutil", SimpleNamespace(disk_usage=lambda _: disk))
    if call.get("full_disk"):
        yield patch.object(hub_cache.ModelCache, "receive", _full_disk)


def resolve(call: dict[str, Any]) -> dict[str, Any]:
    """Make one call; everything it said and did, in order, is in the answer."""
    events: list[dict[str, Any]] = []
    log: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: log.append(record.getMessage())
    logging.getLogger("mlx_diffusiongemma").handlers = [handler]

    def on_plan(plan: hub.DownloadPlan) -> None:
        events.append(asdict(plan) | {"folder": str(plan.folder)})

    def progress(state: hub.DownloadProgress) -> None:
        events.append(asdict(state))
        if state.done_bytes >= call.get("interrupt_at", 10**12):
            signal.raise_signal(signal.SIGINT)

    answer: dict[str, Any] = {"events": events, "log": log}
    try:
        path = hub.resolve(
            call["name"], revision=call.get("revision"), progress=progress, on_plan=on_plan
        )
    except (DGemmaError, KeyboardInterrupt) as error:
        hint = error.hint if isinstance(error, DGemmaError) else None
        return answer | {"kind": type(error).__name__, "error": str(error), "hint": hint}
    return answer | {"path": str(path)}


if __name__ == "__main__":
    socket.socket.connect = _connect_inside
    for line in sys.stdin:
        asked = json.loads(line)
        with ExitStack() as stack:
            for condition in conditions(asked):
                stack.enter_context(condition)
            print(json.dumps(resolve(asked)), flush=True)
