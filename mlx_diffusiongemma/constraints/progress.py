"""How far a constrained answer has come, from canvas to canvas.

follow --> rules of a canvas --> block --> commit --> rules of the next canvas --> ... --> is_over
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from mlx_diffusiongemma.constraints.byte_automaton import byte_automaton
from mlx_diffusiongemma.constraints.canvas_rules import CanvasRules
from mlx_diffusiongemma.constraints.constraint import CanvasConstraint, SpanKind, language_of
from mlx_diffusiongemma.constraints.stopwatch import ConstraintCost, Stopwatch
from mlx_diffusiongemma.constraints.token_automaton import FAR, TokenAutomaton, token_automaton
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary
from mlx_diffusiongemma.errors import ConstraintError

_KEPT_AUTOMATA = 16


def follow(
    constraint: CanvasConstraint,
    vocabulary: Vocabulary,
    max_tokens: int,
    cost: ConstraintCost | None = None,
) -> "ConstrainedText":
    """Begin an answer; ConstraintError unless it can end within `max_tokens`.

    What is spent on it from now on is added to `cost`.
    """
    cost = cost or ConstraintCost()
    allowed = dict(constraint.tokens)
    highest = max((max(tokens) for tokens in allowed.values()), default=0)
    if highest >= vocabulary.size:
        raise ConstraintError(
            f"token {highest} is allowed", hint=f"the vocabulary has {vocabulary.size} tokens"
        )
    with cost.preparing:
        automaton = _automaton(constraint.spans, vocabulary)
    return ConstrainedText(automaton, allowed, max_tokens, cost.working)


@lru_cache(maxsize=_KEPT_AUTOMATA)
def _automaton(spans: tuple[tuple[SpanKind, str], ...], vocabulary: Vocabulary) -> TokenAutomaton:
    return token_automaton(byte_automaton(language_of(spans)), vocabulary)


class ConstrainedText:
    """An answer that follows a constraint: the state that it is in, and what may come next.

    Attributes:
        is_over: whether nothing can follow what is committed.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        allowed: Mapping[int, Sequence[int]],
        max_tokens: int,
        watch: Stopwatch,
    ):
        needed = int(automaton.tokens_to_end[automaton.start])
        if needed >= FAR:
            raise ConstraintError("the tokens of this model cannot write what the constraint asks")
        if needed > max_tokens:
            raise ConstraintError(
                f"the constraint needs at least {needed} tokens, and max_tokens is {max_tokens}",
                hint=f"allow {needed} or more (`--max-tokens`)",
            )
        self._automaton, self._state = automaton, automaton.start
        self._allowed = {at: np.unique(np.array(t, np.int32)) for at, t in allowed.items()}
        self._max_tokens, self._written, self._watch = max_tokens, 0, watch
        self.is_over = False

    def rules(self, length: int) -> CanvasRules:
        """The rules of the next canvas, of `length` positions; ConstraintError if none fits."""
        return CanvasRules(
            self._automaton,
            self._state,
            length=length,
            budget=self._max_tokens - self._written,
            allowed={
                at - self._written: tokens
                for at, tokens in self._allowed.items()
                if 0 <= at - self._written < length
            },
            watch=self._watch,
        )

    def commit(self, tokens: Sequence[int]) -> bool:
        """Go on behind these tokens, which the rules have allowed; whether the text is over.

        It is when nothing can follow, or when no token is left to write it with.
        """
        with self._watch:
            for token in tokens:
                after = self._automaton.after(self._state, token)
                if after is None:
                    raise AssertionError(f"token {token} breaks the constraint")
                self._state = after
            self._written += len(tokens)
            leaving = self._automaton.target[self._automaton.source == self._state]
            self.is_over = bool((leaving == self._automaton.end).all())
        return self.is_over or self._written == self._max_tokens
