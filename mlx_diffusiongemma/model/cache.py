"""KV caches: what prefill writes and denoising reads.

    buffer  [ prefix .......... | canvas (scratch) | spare ]
              0 .. stored         stored .. stored + L

A denoising step writes its canvas behind the prefix and attends to a view of both, so the prefix
is never copied and no mask is needed. Only `append` makes tokens permanent.

Shapes: B batch, K key-value heads, S tokens, D head_dim. Keys and values are [B, K, S, D].
"""

import mlx.core as mx

_GROWTH = 512  # tokens; full layers grow by multiples of this


class LayerCache:
    """Keys and values of one layer, in order of position.

    A full layer (`window=None`) keeps every token. A sliding layer keeps the last `window - 1`:
    with its own position, that is all that a later token sees (transformers'
    `DynamicSlidingWindowLayer`). `canvas_length` is the room it leaves behind them.
    """

    def __init__(self, window: int | None = None, canvas_length: int = 0):
        self._canvas_length = canvas_length
        self.keep = None if window is None else window - 1
        self.stored = 0
        self._keys: mx.array | None = None
        self._values: mx.array | None = None
        self._expected = 0

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add tokens for good.

        Returns the keys and values that the new tokens attend to: everything stored before, as
        far as this layer kept it, and the new tokens themselves.
        """
        if self.keep is None:
            return self._write(keys, values, permanent=True)
        seen_keys, seen_values = keys, values
        if self._keys is not None and self._values is not None and self.stored:
            seen_keys = mx.concatenate([self._keys[:, :, : self.stored], keys], axis=2)
            seen_values = mx.concatenate([self._values[:, :, : self.stored], values], axis=2)
        kept = min(self.keep, seen_keys.shape[2])
        self.stored = 0
        start = seen_keys.shape[2] - kept
        self._write(seen_keys[:, :, start:], seen_values[:, :, start:], permanent=True)
        return seen_keys, seen_values

    def with_canvas(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Views of the stored tokens followed by these ones, which are not kept."""
        return self._write(keys, values, permanent=False)

    def expect(self, tokens: int) -> None:
        """Announce how many tokens are coming, so that the buffers are made once."""
        self._expected = max(self._expected, tokens)

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers, for `mx.eval`."""
        return [array for array in (self._keys, self._values) if array is not None]

    def state(self) -> tuple[mx.array, mx.array]:
        """The stored keys and values, [B, K, stored, D]."""
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty")
        return self._keys[:, :, : self.stored], self._values[:, :, : self.stored]

    def _write(
        self, keys: mx.array, values: mx.array, *, permanent: bool
    ) -> tuple[mx.array, mx.array]:
        end = self.stored + keys.shape[2]
        all_keys = self._keys = self._room(self._keys, keys, end)
        all_values = self._values = self._room(self._values, values, end)
        all_keys[:, :, self.stored : end] = keys
        all_values[:, :, self.stored : end] = values
        if permanent:
            self.stored = end
        return all_keys[:, :, :end], all_values[:, :, :end]

    def _room(self, buffer: mx.array | None, new: mx.array, end: int) -> mx.array:
        """`buffer`, or a larger one with the same tokens, with room up to position `end`."""
        if buffer is not None and end <= buffer.shape[2]:
            return buffer
        batch, heads, _, head_dim = new.shape
        capacity = -(-max(end, self._expected) // _GROWTH) * _GROWTH
        if self.keep is not None:
            capacity = max(end, min(capacity, self.keep + self._canvas_length))
        larger = mx.zeros((batch, heads, capacity, head_dim), new.dtype)
        if buffer is not None and self.stored:
            larger[:, :, : self.stored] = buffer[:, :, : self.stored]
        return larger


class KVCache:
    """The caches of all layers and the number of tokens they have seen."""

    def __init__(self, layers: list[LayerCache]):
        self.layers = layers
        self.offset = 0

    def expect(self, tokens: int) -> None:
        """Announce how many tokens are coming, so that the buffers are made once."""
        for layer in self.layers:
            layer.expect(tokens)

    @property
    def arrays(self) -> list[mx.array]:
        """Every buffer, for `mx.eval`."""
        return [array for layer in self.layers for array in layer.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, spare room included."""
        return sum(array.nbytes for array in self.arrays)
