"""Runs the command as a person does: a subprocess with pipes, or one at a terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass

COMMAND = (sys.executable, "-m", "mlx_diffusiongemma")
SECONDS = 120


@dataclass(frozen=True)
class Run:
    """What a person sees of one run."""

    code: int
    out: str
    err: str


def run_command(*args: str, stdin: bytes = b"", **environment: str) -> Run:
    """Run the command as a subprocess whose three streams are pipes."""
    result = subprocess.run(
        [*COMMAND, *args],
        input=stdin,
        capture_output=True,
        env=os.environ | environment,
        timeout=SECONDS,
    )
    return Run(result.returncode, result.stdout.decode(), result.stderr.decode())


class Terminal:
    """The command at a terminal of its own, 80 columns wide; `screen` is all that it wrote."""

    def __init__(self, *args: str, **environment: str):
        self.screen = ""
        self._main, inner = pty.openpty()
        self._process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment,
        )
        os.close(inner)

    def type(self, keys: str) -> None:
        """Press keys: "\\x03" is Ctrl-C, "\\x04" Ctrl-D, "\\n" Enter."""
        os.write(self._main, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C at a prompt that has had time to listen: Python's readline misses a signal
        that comes between its writing the prompt and its waiting for keys."""
        time.sleep(0.5)
        self.type("\x03")

    def wait_for(self, pattern: str) -> str:
        """Read until `pattern` is on the screen; what was read since the last call."""
        new, deadline = "", time.monotonic() + SECONDS
        while not re.search(pattern, new):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.screen!r}"
            piece = self._read()
            assert piece is not None, f"ended without {pattern!r}: {self.screen!r}"
            new += piece
        return new

    def end(self) -> int:
        """Read the rest and return the exit code."""
        while self._read() is not None:
            pass
        os.close(self._main)
        return self._process.wait(SECONDS)

    def _read(self) -> str | None:
        if not select.select([self._main], [], [], 0.2)[0]:
            return ""
        try:
            piece = os.read(self._main, 65536).decode(errors="replace")
        except OSError:  # what Linux says when the other side has closed
            piece = ""
        self.screen += piece
        return piece or None


def _take_terminal() -> None:
    """Make the new session's terminal its own, so that Ctrl-C becomes SIGINT."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
