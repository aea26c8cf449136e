"""How much all sessions of a model may keep, and which of them gives up its cache first."""

import contextlib
import threading
import weakref
from collections.abc import Iterator

from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.prefix_cache import PrefixCache


class SessionMemory:
    """Holds the caches of all sessions below a limit.

    Above it, the cache goes whose last turn began the longest ago, then the next, but never one
    that is answering. A session without its cache keeps its history, and reads it again.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self._lock = threading.RLock()  # a generator that is collected meanwhile ends its turn
        # In the order of their last turns; a cache that nobody else holds is gone by itself.
        self._caches: list[weakref.ref[PrefixCache]] = []
        self._answering: set[int] = set()

    @contextlib.contextmanager
    def in_use(self, cache: PrefixCache) -> Iterator[None]:
        """Hold a cache for one turn; GenerationError when another turn holds it."""
        with self._lock:
            if id(cache) in self._answering:
                raise GenerationError(
                    "the session is answering another message",
                    hint="read that answer to its end, or close its iterator, before the next",
                )
            self._answering.add(id(cache))
            others = [ref for ref in self._caches if ref() not in (None, cache)]
            self._caches = [*others, weakref.ref(cache)]
        try:
            yield
        finally:
            with self._lock:
                self._answering.remove(id(cache))

    def make_room(self) -> None:
        """Clear the oldest caches that are not in use until all together keep to the limit."""
        with self._lock:
            caches = [cache for ref in self._caches if (cache := ref()) is not None]
            total = sum(cache.nbytes for cache in caches)
            for cache in caches:
                if total <= self.limit_bytes:
                    return
                if id(cache) not in self._answering:
                    total -= cache.nbytes
                    cache.clear()

    @property
    def total_bytes(self) -> int:
        """What all caches take now."""
        with self._lock:
            return sum(cache.nbytes for ref in self._caches if (cache := ref()) is not None)
