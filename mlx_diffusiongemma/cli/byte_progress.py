"""Bytes on their way, on standard error: a bar at a terminal, now and then a line elsewhere."""

import time
from typing import Protocol

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from mlx_diffusiongemma.cli import console
from mlx_diffusiongemma.hub_cache import format_size

# Without a terminal there is a line for each of these, whichever comes first, but not in bursts.
LINE_PERCENT = 10
LINE_SECONDS = 60.0
QUIET_SECONDS = 5.0
_LABEL_WIDTH = 32


class View(Protocol):
    """Shows how far it is."""

    def update(self, done: int, label: str) -> None:
        """Show `done` bytes, with `label` in work."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def open_view(total: int, done: int = 0) -> View:
    """A view of `total` bytes of which `done` are there before it begins."""
    return _Bar(total, done) if console.is_live() else _Lines(total, done)


class _Bar:
    """One line that is redrawn: bar, bytes, rate, time left, file."""

    def __init__(self, total: int, done: int):
        self._bar = Progress(
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            DownloadColumn(table_column=Column(no_wrap=True)),
            TransferSpeedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", style="dim", table_column=_label_column()),
            console=console.stderr,
            redirect_stdout=False,
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, completed=done)
        self._bar.start()

    def update(self, done: int, label: str) -> None:
        self._bar.update(self._task, completed=done, description=label)

    def close(self) -> None:
        self._bar.stop()


def _label_column() -> Column:
    """Cuts what is in work, so that the rest of the line never has to wrap."""
    return Column(no_wrap=True, overflow="ellipsis", max_width=_LABEL_WIDTH)


class _Lines:
    """A line for every tenth of the way and for every minute."""

    def __init__(self, total: int, done: int):
        self._begun = self._said_at = time.monotonic()
        self._total, self._at_begin = total, done
        self._said = _percent(done, total)

    def update(self, done: int, label: str) -> None:
        now, percent = time.monotonic(), _percent(done, self._total)
        silent = now - self._said_at
        due = percent // LINE_PERCENT > self._said // LINE_PERCENT
        if silent < (QUIET_SECONDS if due else LINE_SECONDS) and not (due and percent == 100):
            return
        self._said, self._said_at = percent, now
        line = f"{percent} % of {format_size(self._total)}"
        rate = (done - self._at_begin) / max(now - self._begun, 1e-3)
        if rate > 0:
            left = (self._total - done) / rate
            line += f", {format_size(round(rate))}/s, {_duration(left)} left"
        console.say(line)

    def close(self) -> None:
        pass


def _percent(part: int, whole: int) -> int:
    return 100 * part // max(whole, 1)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
