"""The two streams: the answer on standard output, notes and errors on standard error."""

import contextlib
import json
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from mlx_diffusiongemma.errors import DGemmaError

_PATIENCE = 0.5  # seconds before a wait is explained

stderr = Console(stderr=True, highlight=False)


def write_stdout(text: str) -> None:
    """Write a piece of the answer at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def labelled(label: str, *lines: str) -> Iterator[str]:
    """Lines of a report, the first behind its label."""
    for line in lines:
        yield f"{label:13}  {line}"
        label = ""


def print_json(fields: dict[str, Any]) -> None:
    """One JSON object on one line of standard output."""
    write_stdout(json.dumps(fields, ensure_ascii=False) + "\n")


def is_live() -> bool:
    """Whether standard error is a terminal that can redraw what it shows."""
    return sys.stderr.isatty() and stderr.is_terminal and not stderr.is_dumb_terminal


def say(*parts: str | tuple[str, str], end: str = "\n") -> None:
    """Write one line; a part is plain text or (text, style). Never wrapped, never markup."""
    stderr.print(Text.assemble(*parts), end=end, soft_wrap=True)


def note(message: str) -> None:
    """Say something worth knowing that is not an error."""
    say(("note", "cyan"), f": {message}")


def print_error(message: str, hint: str | None = None) -> None:
    """Say what is wrong and, after a blank line, what to do about it."""
    say(("error", "bold red"), f": {message}")
    if hint:
        say()
        say(("hint", "cyan"), f": {hint}")


@contextlib.contextmanager
def counting(count: int, things: str) -> Iterator[Callable[[int], None]]:
    """Say how many of `count` things are done, where that can be redrawn."""
    if not is_live():
        yield lambda done: None
        return
    with stderr.status(f"0 of {count} {things}") as status:
        yield lambda done: status.update(f"{done} of {count} {things}")


@contextlib.contextmanager
def waiting(words: str) -> Iterator[None]:
    """Say what takes so long, where that can be erased again, once it has taken a while."""
    if not is_live():
        yield
        return
    status = stderr.status(words)
    timer = threading.Timer(_PATIENCE, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextlib.contextmanager
def typing_hidden() -> Iterator[None]:
    """Keep typed keys out of a region that is being redrawn; they are read afterwards."""
    # A background job that changed the terminal would be stopped by it.
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    hidden = termios.tcgetattr(terminal)
    hidden[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def describe(error: DGemmaError | OSError | MemoryError) -> tuple[str, str | None]:
    """The message and the hint of an error that a person can act on."""
    if isinstance(error, DGemmaError):
        return str(error), error.hint
    if isinstance(error, MemoryError):
        return "out of memory", "close other programs, or use a model with fewer bits"
    if isinstance(error, FileNotFoundError) and not error.filename and not _has_folder():
        return "the working directory is gone", "change to a folder that exists"
    reason = error.strerror or str(error) or type(error).__name__
    return (f"`{error.filename}`: {reason}" if error.filename else reason), None


def _has_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
