"""What a step believed in short: the soft embedding of its likeliest tokens, with a certificate."""

import math
from typing import NamedTuple

import mlx.core as mx

# How far a soft embedding may be off, as a share of its length: one rounding to bfloat16.
ERROR_SHARE = 2.0**-8


class Digest(NamedTuple):
    """A soft embedding from survivors; see `reference_sparse`."""

    soft: mx.array  # float [B, L, D], before the embedding scale
    squares: mx.array  # float32 [B, L], of its length
    error: mx.array  # float32 [B, L], how long the difference to the whole sum can be
    missed: tuple[int, ...] = ()  # rows of [B * L, D] for which that is too much; see `settled`

    def settled(self) -> "Digest":
        """With the rows that miss the certificate. Waits for the arrays unless they are there."""
        squares: list[float] = self.squares.reshape(-1).tolist()  # type: ignore[assignment]
        errors: list[float] = self.error.reshape(-1).tolist()  # type: ignore[assignment]
        missed = [
            row
            for row, (square, error) in enumerate(zip(squares, errors, strict=True))
            if not error <= ERROR_SHARE * math.sqrt(square)  # NaN misses it
        ]
        return self._replace(missed=tuple(missed))

    def first(self, length: int) -> "Digest":
        """That of the first positions of one canvas, [1, L]."""
        soft, squares, error = (
            array[:, :length] for array in (self.soft, self.squares, self.error)
        )
        return Digest(soft, squares, error, tuple(row for row in self.missed if row < length))
