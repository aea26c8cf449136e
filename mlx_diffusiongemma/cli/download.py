"""A download on standard error: a bar at a terminal, now and then a line elsewhere."""

import time
from pathlib import Path
from types import TracebackType

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.cli import console
from mlx_diffusiongemma.hub_cache import format_size

# Without a terminal there is a line for each of these, whichever comes first, but not in bursts.
LINE_PERCENT = 10
LINE_SECONDS = 60.0
QUIET_SECONDS = 5.0


def announce(plan: hub.DownloadPlan) -> str:
    """What will be downloaded, how large it is and where it goes."""
    revision = "" if plan.revision == "main" else f" at {plan.revision}"
    folder = plan.folder
    if folder.is_relative_to(Path.home()):
        folder = Path("~") / folder.relative_to(Path.home())
    return (
        f"downloading {plan.repo}{revision} ({format_size(plan.total_bytes)}, "
        f"{format_size(plan.cached_bytes)} already here) to {folder}"
    )


class DownloadDisplay:
    """Shows what `hub.resolve` reports; nothing if it reports nothing.

    with DownloadDisplay() as display:
        hub.resolve(name, progress=display.progress, on_plan=display.on_plan)
    """

    def __init__(self) -> None:
        self._view: _Bar | _Lines | None = None

    def __enter__(self) -> "DownloadDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._view:
            self._view.close()

    def on_plan(self, plan: hub.DownloadPlan) -> None:
        """Say what is about to be downloaded."""
        console.say(announce(plan))
        self._view = _Bar(plan) if console.is_live() else _Lines(plan)

    def progress(self, state: hub.DownloadProgress) -> None:
        """Show how far it is."""
        if self._view:
            self._view.update(state)


class _Bar:
    """One line that is redrawn: bar, bytes, rate, time left, file."""

    def __init__(self, plan: hub.DownloadPlan):
        self._bar = Progress(
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", style="dim"),
            console=console.stderr,
            redirect_stdout=False,
            expand=True,
        )
        self._task = self._bar.add_task("", total=plan.total_bytes, completed=plan.cached_bytes)
        self._bar.start()

    def update(self, state: hub.DownloadProgress) -> None:
        self._bar.update(self._task, completed=state.done_bytes, description=state.file)

    def close(self) -> None:
        self._bar.stop()


class _Lines:
    """A line for every tenth of the way and for every minute."""

    def __init__(self, plan: hub.DownloadPlan):
        self._begun = self._said_at = time.monotonic()
        self._at_begin = plan.cached_bytes
        self._said = _percent(plan.cached_bytes, plan.total_bytes)

    def update(self, state: hub.DownloadProgress) -> None:
        now, percent = time.monotonic(), _percent(state.done_bytes, state.total_bytes)
        silent = now - self._said_at
        due = percent // LINE_PERCENT > self._said // LINE_PERCENT
        if silent < (QUIET_SECONDS if due else LINE_SECONDS) and not (due and percent == 100):
            return
        self._said, self._said_at = percent, now
        line = f"{percent} % of {format_size(state.total_bytes)}"
        rate = (state.done_bytes - self._at_begin) / max(now - self._begun, 1e-3)
        if rate > 0:
            left = (state.total_bytes - state.done_bytes) / rate
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
