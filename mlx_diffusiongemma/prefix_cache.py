"""A KV cache that knows its tokens, so that a prompt which begins like them is not read again.

    tokens in the cache   a b c d e f g
    the next prompt       a b c d x y      4 are shared --> go back to 4 --> read x y

Every read token is one that the network has seen in full: whatever fails or is cancelled, the
tokens and the cache stay in step.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile

import mlx.core as mx

from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.model import DiffusionGemma, KVCache
from mlx_diffusiongemma.passes import Predict


class PrefixCache:
    """The KV cache of one conversation.

    Attributes:
        kv: the cache itself, for `model.denoise`.
        tokens: what has been read into it.
        nbytes: memory it takes; may be read while another thread writes.
    """

    def __init__(self, model: DiffusionGemma, rewind_tokens: int = 0):
        self._model = model
        self._rewind_tokens = rewind_tokens
        self.clear()

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self.tokens: list[int] = []
        self.kv = self.new_kv()
        self.nbytes = 0

    def hold(self, tokens: Sequence[int], kv: KVCache) -> None:
        """Take over a cache into which just these tokens were read."""
        self.tokens, self.kv, self.nbytes = list(tokens), kv, kv.nbytes

    def new_kv(self) -> KVCache:
        """An empty cache that can go back as far as this one."""
        return self._model.make_cache(self._rewind_tokens)

    def go_to(self, prompt: Sequence[int], marks: Iterable[int] = ()) -> int:
        """Keep the longest beginning of `prompt` that the cache can go back to; forget the rest.

        `marks` are positions where later prompts may part from this one. Returns how many tokens
        the cache and the prompt share, which may be more than are kept: see `KVCache.rewind`.
        """
        shared = common_prefix(self.tokens, prompt)
        kept = self.kv.rewind(shared)
        del self.tokens[kept:]
        mx.eval(self.kv.arrays)  # what is left lazy belongs to this thread
        for mark in marks:
            self.kv.mark(mark)
        return shared

    def expect(self, tokens: int) -> None:
        """Announce how many tokens it will hold before the next canvas."""
        self.kv.expect(tokens + self._model.config.canvas_length)

    def read(self, tokens: Sequence[int]) -> None:
        """Read more tokens; if that is interrupted, those that were read in full stay."""
        try:
            self._model.prefill(mx.array([tokens], mx.int32), self.kv)
        except KeyboardInterrupt:
            self.tokens += tokens
            del self.tokens[self.kv.rewind(self.kv.offset) :]
            raise
        except BaseException:  # arrays that failed to compute are of no use to anyone
            self.clear()
            raise
        self.tokens += tokens
        self.nbytes = self.kv.nbytes

    def predict(self, asked: Predict) -> Logits:
        """Do a decoder pass over a canvas that follows the tokens."""
        return self._model.predict(asked.canvas, self.kv, asked.belief)

    def read_ahead(self, token: mx.array) -> mx.array:
        """Begin to read a token, int32 [1, 1], that may still be in computation.

        Returns float32 [1, 1, V], the logits after it, in computation too. `confirm` must follow,
        or `settle`, which forgets the token again.
        """
        try:
            logits = self._model.next_logits(token, self.kv)
            mx.async_eval(logits, self.kv.arrays)
        except Exception:  # arrays that failed to compute are of no use to anyone
            self.clear()
            raise
        return logits

    def confirm(self, token: mx.array) -> int:
        """Wait for the token that was read ahead and note which one it is."""
        try:
            value: int = token.item()  # type: ignore[assignment]
        except Exception:
            self.clear()
            raise
        self.tokens.append(value)
        self.nbytes = self.kv.nbytes
        return value

    def settle(self) -> None:
        """Forget what was read ahead and not confirmed."""
        del self.tokens[self.kv.rewind(len(self.tokens)) :]
        mx.eval(self.kv.arrays)  # what is left lazy belongs to this thread


def read_together(model: DiffusionGemma, reads: Sequence[tuple[PrefixCache, list[int]]]) -> int:
    """Read tokens into several caches in as few passes as hold them; returns how many those were.

    If that fails or is interrupted, all of these caches are cleared.
    """
    try:
        passes = model.prefill_rows(
            [tokens for _, tokens in reads], [cache.kv for cache, _ in reads]
        )
    except BaseException:
        for cache, _ in reads:
            cache.clear()
        raise
    for cache, tokens in reads:
        cache.hold([*cache.tokens, *tokens], cache.kv)
    return passes


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
