"""KV caches: what prefill writes and denoising reads.

    buffer  [ spare | seen prefix .... | canvas (scratch) | room ]
              0 ..                       stored .. stored + L

A denoising step writes its canvas behind the prefix and attends to a view of both, so the prefix
is never copied and no mask is needed. Only `append` makes tokens permanent.

A cache can go back to an earlier position. Full layers just forget. A sliding layer needs the
window before that position: it finds it among its spare tokens, or at a mark that was set there.

Shapes: B batch, K key-value heads, S tokens, D head_dim. Keys and values are [B, K, S, D].
"""

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx

_GROWTH = 512  # tokens; full layers grow by multiples of this
MOST_MARKS = 4  # in one cache; each costs a sliding window once the layer has moved past it


class LayerCache:
    """Keys and values of one layer, in order of position.

    A full layer (`window=None`) keeps every token. Of a sliding layer later tokens see the last
    `window - 1`: with their own position, that is the window (transformers'
    `DynamicSlidingWindowLayer`). It keeps `spare` more, so that it can go back that far, and
    leaves room for `canvas_length` behind them. Tokens that come one by one fill that room before
    older ones are dropped, so the window is not copied for each of them.
    """

    def __init__(self, window: int | None = None, canvas_length: int = 0, spare: int = 0):
        self._canvas_length = canvas_length
        self._spare = spare
        self.keep = None if window is None else window - 1
        # `stored` is set last by whatever changes the buffers: an interrupt never leaves a layer
        # that claims tokens it does not have.
        self.stored = 0
        self._first = 0  # position of the first stored token
        self._keys: mx.array | None = None
        self._values: mx.array | None = None
        self._expected = 0
        # None while the layer still has the window that ends there.
        self._marks: dict[int, tuple[mx.array, mx.array] | None] = {}

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add tokens for good.

        Returns the keys and values that the new tokens attend to: everything stored before, as
        far as they may see it, and the new tokens themselves.
        """
        seen = self._seen_from()
        most = self._most_tokens()
        # More than one token at a time leaves the room to the canvas that is likely to follow.
        room = self._canvas_length if keys.shape[2] == 1 else 0
        if most is None or self.stored + keys.shape[2] <= most + room:
            all_keys, all_values = self._write(keys, values, permanent=True)
            return all_keys[:, :, seen:], all_values[:, :, seen:]
        if self._keys is not None and self._values is not None and self.stored:
            keys = mx.concatenate([self._keys[:, :, : self.stored], keys], axis=2)
            values = mx.concatenate([self._values[:, :, : self.stored], values], axis=2)
        dropped = keys.shape[2] - most
        self._save_marks(keys, values, dropped)
        self.stored = 0
        self._first += dropped
        self._write(keys[:, :, dropped:], values[:, :, dropped:], permanent=True)
        return keys[:, :, seen:], values[:, :, seen:]

    def with_canvas(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Views of the tokens it sees followed by these ones, which are not kept."""
        self._free_room()
        seen = self._seen_from()
        all_keys, all_values = self._write(keys, values, permanent=False)
        return all_keys[:, :, seen:], all_values[:, :, seen:]

    def expect(self, tokens: int) -> None:
        """Announce how many tokens are coming, so that the buffers are made once."""
        self._expected = max(self._expected, tokens)

    def mark(self, position: int) -> None:
        """Keep what a return to `position` needs; a position still to come may be marked too.

        Nothing happens when that is lost already, or never is.
        """
        if self.keep and (position > self._end or self.reach(position) == position):
            self._marks.setdefault(position, None)

    def unmark(self, position: int) -> None:
        """Free what `mark` kept."""
        self._marks.pop(position, None)

    def reach(self, position: int) -> int:
        """The last position up to `position` that this layer can go back to."""
        position = min(position, self._end)
        if self._covers(position) or self.keep == 0:
            return position
        saved = [mark for mark, kept in self._marks.items() if kept and mark <= position]
        return max(saved, default=0)

    def go_back(self, position: int) -> None:
        """Forget the tokens from `position` on; it must be one that `reach` gives."""
        self._marks = {mark: kept for mark, kept in self._marks.items() if mark <= position}
        if self._covers(position):
            self.stored = position - self._first
            return
        self.stored = 0
        self._first = position
        saved = self._marks.get(position)
        if saved is not None:
            self._first = position - saved[0].shape[2]
            self._write(*saved, permanent=True)

    @property
    def arrays(self) -> list[mx.array]:
        """Every array it holds, for `mx.eval`."""
        saved = [array for kept in self._marks.values() if kept for array in kept]
        return [array for array in (self._keys, self._values, *saved) if array is not None]

    def state(self) -> tuple[mx.array, mx.array]:
        """The keys and values that a later token sees, [B, K, S, D]."""
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty")
        seen = slice(self._seen_from(), self.stored)
        return self._keys[:, :, seen], self._values[:, :, seen]

    def to_arrays(self) -> dict[str, mx.array]:
        """Everything it holds, by name: what `restore` takes."""
        arrays = {}
        if self._keys is not None and self._values is not None:
            arrays["keys"] = self._keys[:, :, : self.stored]
            arrays["values"] = self._values[:, :, : self.stored]
        for mark, kept in self._marks.items():
            if kept is not None:
                arrays[f"{mark}.keys"], arrays[f"{mark}.values"] = kept
        return arrays

    def restore(self, arrays: Mapping[str, mx.array], end: int, marks: Iterable[int]) -> None:
        """Become the layer that `arrays` are of, at position `end`; KeyError when one lacks."""
        for mark in marks if self.keep else ():
            kept = f"{mark}.keys" in arrays
            self._marks[mark] = (arrays[f"{mark}.keys"], arrays[f"{mark}.values"]) if kept else None
        self._keys, self._values = arrays["keys"], arrays["values"]
        self._first = end - self._keys.shape[2]
        self.stored = self._keys.shape[2]

    @property
    def _end(self) -> int:
        return self._first + self.stored

    def _seen_from(self) -> int:
        """Where in the buffer the tokens begin that the next one sees."""
        return 0 if self.keep is None else max(self.stored - self.keep, 0)

    def _most_tokens(self) -> int | None:
        return None if self.keep is None else self.keep + self._spare

    def _free_room(self) -> None:
        """Drop the oldest tokens where ones that came one by one have filled the canvas's room."""
        most = self._most_tokens()
        if most is None or self.stored <= most or self._keys is None or self._values is None:
            return
        dropped, end = self.stored - most, self.stored
        self._save_marks(self._keys, self._values, dropped)
        kept = [buffer[:, :, dropped:end] for buffer in (self._keys, self._values)]
        self.stored = 0
        self._first += dropped
        self._write(kept[0], kept[1], permanent=True)

    def _covers(self, position: int) -> bool:
        """Whether the buffer holds all that a token at `position` sees."""
        start = 0 if self.keep is None else max(position - self.keep, 0)
        return start >= self._first or position == self._first == 0

    def _save_marks(self, keys: mx.array, values: mx.array, dropped: int) -> None:
        """Copy the windows of marks that lose their first tokens when `dropped` tokens go."""
        assert self.keep is not None
        for mark, kept in self._marks.items():
            start = max(mark - self.keep, 0) - self._first
            if kept is None and start < dropped:
                window = slice(start, mark - self._first)
                self._marks[mark] = (_copy(keys[:, :, window]), _copy(values[:, :, window]))

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
        most = self._most_tokens()
        if most is not None:
            capacity = max(end, min(capacity, most + self._canvas_length))
        larger = mx.zeros((batch, heads, capacity, head_dim), new.dtype)
        if buffer is not None and self.stored:
            larger[:, :, : self.stored] = buffer[:, :, : self.stored]
        return larger


class KVCache:
    """The caches of all layers and the number of tokens they have seen."""

    def __init__(self, layers: list[LayerCache]):
        self.layers = layers
        self.offset = 0
        self._marks: list[int] = []

    def expect(self, tokens: int) -> None:
        """Announce how many tokens are coming, so that the buffers are made once."""
        for layer in self.layers:
            layer.expect(tokens)

    def mark(self, position: int) -> None:
        """Keep what a return to `position` needs, whatever is read later.

        Beyond `MOST_MARKS` the one goes whose loss costs the fewest tokens to read again.
        """
        lost = position <= self.offset and self._reach(position) < position
        if position in self._marks or lost or position < 1:
            return
        self._marks = sorted([*self._marks, position])
        for layer in self.layers:
            layer.mark(position)
        while len(self._marks) > MOST_MARKS:
            costs = zip([0, *self._marks], self._marks, strict=False)
            cost = {mark: mark - before for before, mark in costs if mark != position}
            cheapest = min(cost, key=lambda mark: cost[mark])
            self._marks.remove(cheapest)
            for layer in self.layers:
                layer.unmark(cheapest)

    def rewind(self, position: int) -> int:
        """Forget the tokens from `position` on, and return how many are left.

        Those are fewer than `position` where a sliding layer has lost the window before it: then
        the cache goes back to the last position that every layer can reach.
        """
        target = self._reach(position)
        for layer in self.layers:
            layer.go_back(target)
        self._marks = [mark for mark in self._marks if mark <= target]
        self.offset = target
        return target

    @property
    def marks(self) -> tuple[int, ...]:
        """The marked positions."""
        return tuple(self._marks)

    def to_arrays(self) -> dict[str, mx.array]:
        """Everything the layers hold, by name; with `offset` and `marks`, what `restore` takes."""
        return {
            f"layers.{index}.{name}": array
            for index, layer in enumerate(self.layers)
            for name, array in layer.to_arrays().items()
        }

    def restore(self, arrays: Mapping[str, mx.array], offset: int, marks: Sequence[int]) -> None:
        """Become the cache that `arrays` are of; KeyError when one is missing."""
        for index, layer in enumerate(self.layers):
            start = f"layers.{index}."
            own = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            layer.restore(own, offset, marks)
        self._marks = sorted(marks)
        self.offset = offset

    def _reach(self, position: int) -> int:
        while (reached := min(layer.reach(position) for layer in self.layers)) < position:
            position = reached
        return position

    @property
    def arrays(self) -> list[mx.array]:
        """Every array it holds, for `mx.eval`."""
        return [array for layer in self.layers for array in layer.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, room for more tokens included."""
        return sum(array.nbytes for array in self.arrays)


def _copy(view: mx.array) -> mx.array:
    """The same numbers in an array of their own: a view would keep its whole source alive."""
    return mx.concatenate([view, view[:, :, :0]], axis=2)
