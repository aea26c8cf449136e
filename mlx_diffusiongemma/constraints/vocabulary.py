"""The bytes of every token, laid out so that all tokens walk an automaton at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What each token writes.

    Attributes:
        size: V, how many tokens the logits are over.
        token_ids: int32 [N], tokens that write something, the longest ones first.
        lengths: int32 [N], their bytes, falling.
        starts: int64 [N], where they begin in `written`.
        written: uint8, the bytes of all of them.
        end_ids: tokens that end an answer; they write nothing.
        padding_ids: tokens that may stand behind an end, besides end tokens.
    """

    size: int
    token_ids: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    written: np.ndarray
    end_ids: tuple[int, ...]
    padding_ids: tuple[int, ...]

    @classmethod
    def of(
        cls,
        tokens: Sequence[bytes | None],
        *,
        end_ids: frozenset[int],
        padding_ids: frozenset[int] = frozenset(),
    ) -> "Vocabulary":
        """From the bytes of each token; None, or no bytes, for those that are never text."""
        texts = [
            b"" if token is None or token_id in end_ids else token
            for token_id, token in enumerate(tokens)
        ]
        lengths = np.array([len(text) for text in texts], np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        order = np.argsort(-lengths, kind="stable")[: int(np.count_nonzero(lengths))]
        return cls(
            size=len(texts),
            token_ids=order.astype(np.int32),
            lengths=lengths[order],
            starts=starts[order],
            written=np.frombuffer(b"".join(texts), np.uint8),
            end_ids=tuple(sorted(end_ids)),
            padding_ids=tuple(sorted(padding_ids - end_ids)),
        )
