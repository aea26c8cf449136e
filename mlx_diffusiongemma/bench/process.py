"""A process that answers requests: one JSON object a line in, one a line out.

    parent                      worker
           <--- hello ---       once it is ready
           --- request -->
           <--- reply ---       ...
           --- (closed) -->     it ends

What a worker measures is of its own process: peak memory, CPU time, age.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from mlx_diffusiongemma.errors import ConfigError, GenerationError

_PATIENCE = 10.0  # seconds for a worker to end by itself


class WorkerProcess:
    """A worker that runs; `hello` is what it said when it was ready.

    Its standard output is the conversation alone; what it writes on standard error is shown when
    it ends before it should. ConfigError, with `hint`, when it does not start.
    """

    def __init__(self, command: Sequence[str], *, hint: str | None = None):
        self._name = " ".join(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._errors.close()
            raise ConfigError(
                f"`{command[0]}` does not start: {error.strerror}",
                hint="name a Python interpreter",
            ) from None
        try:
            self.hello = self._reply()
        except BaseException as error:
            self.close()
            if isinstance(error, GenerationError):
                raise ConfigError(str(error), hint=hint) from None
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its reply; GenerationError when the worker ends instead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._reply()

    def close(self) -> None:
        """Let it end."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            process.stdin.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self) -> GenerationError:
        self._process.wait(_PATIENCE)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return GenerationError(
            f"`{self._name}` ended early: {lines[-1] if lines else 'it said nothing'}"
        )


def serve(hello: Mapping[str, Any], reply: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """The other end: say hello, then answer every line of standard input until it ends."""

    def say(message: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    say(hello)
    for line in sys.stdin:
        say(reply(json.loads(line)))
