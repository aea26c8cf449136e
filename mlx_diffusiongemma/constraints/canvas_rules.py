"""What a constraint does to one canvas: to its logits, its noise and its text.

    noise --> allowed tokens        logits --> -inf where forbidden --> most likely allowed text

Shapes: L canvas, V vocabulary, C classes of tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.constraints.paths import (
    PathProblem,
    best_path,
    class_maxima,
)
from mlx_diffusiongemma.constraints.stopwatch import Stopwatch
from mlx_diffusiongemma.constraints.token_automaton import TokenAutomaton
from mlx_diffusiongemma.errors import ConstraintError


class CanvasRules:
    """The rules of one canvas, whose text goes on from a state of the automaton.

    `watch` counts their own work: what an array took to compute before they see it is not theirs.

    Attributes:
        problem: which paths through the automaton the canvas may take.
        watch: the seconds of their work.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        state: int,
        *,
        length: int,
        budget: int,
        allowed: Mapping[int, np.ndarray] | None = None,
        watch: Stopwatch | None = None,
    ):
        """For `length` positions of a text that has `budget` tokens left.

        `allowed` holds, by position, the only tokens that may stand there. ConstraintError when
        no text at all fits.
        """
        self.watch = Stopwatch() if watch is None else watch
        with self.watch:
            self.problem = PathProblem(
                automaton,
                state,
                room=min(length, budget),
                final=automaton.tokens_to_end <= max(budget - length, 0),
                length=length,
                allowed=allowed or {},
            )
            reached, labels = self.problem.reachable
            if not reached[0].any():
                raise ConstraintError(
                    f"no text that the constraint allows fits into {budget} tokens",
                    hint="allow more tokens, or check that its parts do not contradict each other",
                )
            self._classes = automaton.classes_on(labels)
        self._mask: mx.array | None = None

    def noise(self, tokens: mx.array) -> mx.array:
        """int32 [1, L]: uniform tokens [1, L] of the vocabulary as uniform allowed ones."""
        drawn = np.array(tokens)[0].astype(np.int64)
        with self.watch:
            automaton = self.problem.automaton
            counts = np.cumsum(self._classes * automaton.class_sizes, axis=1)
            place = drawn * counts[:, -1] // automaton.vocab_size
            chosen = (counts <= place[:, None]).sum(axis=1)
            before = counts[np.arange(len(place)), chosen] - automaton.class_sizes[chosen]
            allowed = automaton.tokens[automaton.class_starts[chosen] + place - before]
            for position, among in self.problem.allowed.items():
                fitting = among[self._classes[position][automaton.class_of[among]]]
                allowed[position] = fitting[drawn[position] * len(fitting) // automaton.vocab_size]
            return mx.array(allowed[None].astype(np.int32))

    def masked(self, logits: mx.array) -> mx.array:
        """float32 [1, L, V], evaluated like `logits`: -inf where no allowed text has a token."""
        with self.watch:
            if self._mask is None:
                self._mask = mx.array(self._token_mask())[None]
            masked = mx.where(self._mask, logits, -mx.inf)
            mx.eval(masked)
        return masked

    def _token_mask(self) -> np.ndarray:
        """bool [L, V]."""
        class_of = self.problem.automaton.class_of
        classes = np.pad(self._classes, ((0, 0), (0, 1)))
        mask = np.empty((len(classes), len(class_of)), bool)
        for position, row in enumerate(mask):
            np.take(classes[position], class_of, out=row)
            if position in self.problem.allowed:
                among = self.problem.allowed[position]
                kept = row[among]
                row[:] = False
                row[among] = kept
        return mask

    def read(self, logits: mx.array) -> "Reading":
        """The most likely allowed text; logits float32 [1, L, V], evaluated."""
        rows = np.array(logits, copy=False)[0]
        with self.watch:
            maxima = class_maxima(rows, self.problem)
            return Reading(self, rows, maxima, best_path(self.problem, rows, maxima))


@dataclass(frozen=True, eq=False)
class Reading:
    """What the logits of one step come to under the rules.

    Attributes:
        tokens: int32 [L], the most likely allowed text.
    """

    _rules: CanvasRules
    _logits: np.ndarray
    _maxima: np.ndarray
    tokens: np.ndarray

    @property
    def best(self) -> mx.array:
        """int32 [1, L], `tokens` as a canvas."""
        return mx.array(self.tokens[None])

    def noise(self, tokens: mx.array) -> mx.array:
        """See `CanvasRules.noise`."""
        return self._rules.noise(tokens)

    def joined(self, tokens: mx.array, accepted: mx.array) -> mx.array:
        """int32 [1, L]: the most likely allowed text that keeps most of the accepted tokens."""
        chosen, where = np.array(tokens)[0], np.flatnonzero(np.array(accepted)[0])
        if np.array_equal(chosen[where], self.tokens[where]):
            return self.best
        kept = {int(position): int(chosen[position]) for position in where}
        with self._rules.watch:
            found = best_path(self._rules.problem, self._logits, self._maxima, kept)
        return mx.array(found[None])
