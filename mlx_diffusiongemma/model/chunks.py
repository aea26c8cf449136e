"""How the tokens of several sequences fill the chunks of a prefill pass."""

from collections.abc import Sequence


def packed(lengths: Sequence[int], chunk_size: int) -> list[list[tuple[int, slice]]]:
    """Rows cut into chunks of `chunk_size` tokens, in order: (row, which of its tokens)."""
    chunks: list[list[tuple[int, slice]]] = [[]]
    room = chunk_size
    for row, length in enumerate(lengths):
        start = 0
        while start < length:
            if not room:
                chunks.append([])
                room = chunk_size
            end = min(length, start + room)
            chunks[-1].append((row, slice(start, end)))
            room, start = room - (end - start), end
    return chunks
