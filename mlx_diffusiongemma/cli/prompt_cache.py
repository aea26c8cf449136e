"""`--prompt-cache-file`: what was read of a prompt, kept from one run to the next."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_diffusiongemma.cli.console import note
from mlx_diffusiongemma.events import Event, PromptProcessed
from mlx_diffusiongemma.hub_cache import format_size

if TYPE_CHECKING:
    from mlx_diffusiongemma.session import Session


class PromptCacheFile:
    """A file that a session begins with if it is there, and that is written if it is not."""

    def __init__(self, path: Path, session: "Session"):
        self._path = path
        self._session = session
        self._held = session.load_cache(path) if path.exists() else 0
        self._done = False

    def follow(self, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """Pass events on; once the first prompt has been read, write the file or say its use."""
        with contextlib.closing(events):
            for event in events:
                if isinstance(event, PromptProcessed) and not self._done:
                    self._done = True
                    self._write() if not self._held else self._say_use(event)
                yield event

    def _write(self) -> None:
        size = format_size(self._session.save_cache(self._path))
        note(f"{self._session.cached_tokens} tokens written to `{self._path}`, {size}")

    def _say_use(self, prompt: PromptProcessed) -> None:
        shared = prompt.cached_tokens + prompt.reread_tokens
        if shared < self._held / 2:
            note(f"only {shared} of the {self._held} tokens in `{self._path}` begin this prompt")
