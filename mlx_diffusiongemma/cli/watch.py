"""Drawing the canvas while it is denoised, on standard error; the answer itself is not here."""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.text import Text

from mlx_diffusiongemma.cli import canvas
from mlx_diffusiongemma.cli.console import is_live, say, stderr
from mlx_diffusiongemma.events import BlockCommitted, DenoisingStep

_SECONDS_PER_FRAME = 1 / 15


class Watch(Protocol):
    """Something that shows denoising steps."""

    def start(self) -> None:
        """The prompt has been read."""

    def step(self, event: DenoisingStep, held: str) -> None:
        """Show a step; `held` is answer text whose line is not finished yet."""

    def commit(self, event: BlockCommitted) -> None:
        """Leave the screen clear for the text of this block."""

    def close(self) -> None:
        """Leave the screen clear, whatever happened."""


def open_watch(reader: canvas.CanvasReader) -> Watch:
    """A region that redraws itself on a terminal, one line for each step elsewhere."""
    return LiveCanvas(reader) if is_live() else CanvasLog(reader)


class CanvasLog:
    """One plain line for each step."""

    def __init__(self, reader: canvas.CanvasReader):
        self._reader = reader

    def start(self) -> None:
        """Count time from here."""
        self._reader.start()

    def step(self, event: DenoisingStep, held: str) -> None:
        """Print the step."""
        frame = self._reader.read(event)
        say(f"{canvas.progress(frame, sys.maxsize)}  |{canvas.plain(frame)}|")

    def commit(self, event: BlockCommitted) -> None:
        """Count the block."""
        self._reader.commit(event)

    def close(self) -> None:
        """Nothing to clear."""


class LiveCanvas:
    """A region of the terminal below the answer, redrawn in place and removed afterwards."""

    def __init__(self, reader: canvas.CanvasReader, clock: Callable[[], float] = time.perf_counter):
        self._reader = reader
        self._clock = clock
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._tallest = 0

    def start(self) -> None:
        """Count time from here."""
        self._reader.start()

    def step(self, event: DenoisingStep, held: str) -> None:
        """Redraw, unless the last frame is too fresh."""
        frame = self._reader.read(event)
        now = self._clock()
        if self._live is not None and now - self._drawn_at < _SECONDS_PER_FRAME:
            return
        self._drawn_at = now
        drawing = self._draw(frame, held)
        if self._live is None:
            self._live = Live(
                drawing,
                console=stderr,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)
        else:
            self._live.update(drawing, refresh=True)

    def commit(self, event: BlockCommitted) -> None:
        """Remove the region and count the block."""
        self.close()
        self._reader.commit(event)

    def close(self) -> None:
        """Remove the region and show the cursor again."""
        if self._live is not None:
            self._live.stop()
        self._live = None
        self._tallest = 0

    def _draw(self, frame: canvas.Frame, held: str) -> Group:
        """Held text, canvas, an empty row and the progress line, which never moves up."""
        width, height = stderr.size
        status = Text(canvas.progress(frame, width), "cyan")
        room = max(height - status.plain.count("\n") - 3, 1)
        rows = _wrap(Text(held) + canvas.styled(frame), width)
        if len(rows) > room:
            held_rows = len(_wrap(Text(held), width)) - 1
            first = min(held_rows, len(rows) - room)
            below = len(rows) - first - room
            rows = rows[first : first + room]
            if below:
                rows[-1] = Text(f"… {below + 1} more rows", "dim")
        self._tallest = max(self._tallest, len(rows))
        return Group(*rows, *[Text()] * (self._tallest - len(rows) + 1), status)


def _wrap(text: Text, width: int) -> list[Text]:
    return list(text.wrap(stderr, width, overflow="fold"))
