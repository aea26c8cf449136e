"""Which tokens an automaton cannot tell apart: walked through it once, all together.

A token turns every state into another or into none. Tokens with the same turn form a class; a
vocabulary of 262,144 has a few thousand. Turns are kept by class, never by token.
"""

from dataclasses import dataclass

import numpy as np

from mlx_diffusiongemma.constraints.byte_automaton import ByteAutomaton
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary

_CHUNK = 1 << 24  # entries of turns computed at once: 32 MB


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """Classes of tokens, and what each does to the states of an automaton.

    Attributes:
        turns: [C, S], the state after a token of the class, -1 for none.
        tokens: int32 [N], tokens by class; those that no state allows are left out.
        starts: int64 [C], where the classes begin in `tokens`.
    """

    turns: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray


def token_classes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenClasses:
    """Sort the vocabulary into classes by what its tokens do to the automaton's states."""
    turns = _Turns(automaton)
    now = np.zeros(len(vocabulary.token_ids), np.int64)  # each token's turn so far
    for depth in range(int(vocabulary.lengths[0]) if len(now) else 0):
        count = int(np.searchsorted(-vocabulary.lengths, -depth, side="left"))
        alive = np.flatnonzero(now[:count] >= 0)
        if len(alive) == 0:
            break
        byte = vocabulary.written[vocabulary.starts[alive] + depth]
        now[alive] = turns.after(now[alive], automaton.byte_class[byte])
    alive = np.flatnonzero(now >= 0)
    # By class, and by token in each: which one wins a tie does not depend on their lengths.
    order = alive[np.lexsort((vocabulary.token_ids[alive], now[alive]))]
    used, starts = np.unique(now[order], return_index=True)
    return TokenClasses(turns.rows(used), vocabulary.token_ids[order], starts.astype(np.int64))


class _Turns:
    """Turns by number, 0 is to stay; each is kept once."""

    def __init__(self, automaton: ByteAutomaton):
        states, self._byte_classes = automaton.next.shape
        dtype = np.int16 if states < 1 << 15 else np.int32
        # One row more, read for the state -1: from nowhere it goes nowhere.
        nowhere = np.full((1, self._byte_classes), -1, dtype)
        self._next = np.concatenate([automaton.next.astype(dtype), nowhere]).T.copy()
        self._rows = [np.arange(states, dtype=dtype)]
        self._numbers = {self._rows[0].tobytes(): 0}
        self._after: dict[int, int] = {}

    def after(self, turns: np.ndarray, byte_classes: np.ndarray) -> np.ndarray:
        """The turns that follow when one more byte is written; -1 where no state allows it."""
        keys, back = np.unique(turns * self._byte_classes + byte_classes, return_inverse=True)
        new = [int(key) for key in keys if int(key) not in self._after]
        chunk = max(1, _CHUNK // len(self._rows[0]))
        for first in range(0, len(new), chunk):
            part = new[first : first + chunk]
            before = np.stack([self._rows[key // self._byte_classes] for key in part])
            steps = np.array([key % self._byte_classes for key in part])
            rows = self._next[steps[:, None], before]
            some = (rows >= 0).any(axis=1)
            for key, row, lives in zip(part, rows, some, strict=True):
                self._after[key] = self._number(row) if lives else -1
        return np.array([self._after[int(key)] for key in keys])[back]

    def rows(self, turns: np.ndarray) -> np.ndarray:
        """The states after each of these turns, [turns, states]."""
        if len(turns) == 0:
            return np.empty((0, len(self._rows[0])), self._next.dtype)
        return np.stack([self._rows[int(turn)] for turn in turns])

    def _number(self, row: np.ndarray) -> int:
        key = row.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(row.copy())
        return self._numbers[key]
