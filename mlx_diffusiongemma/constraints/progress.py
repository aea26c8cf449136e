"""How far a constrained answer has come, from canvas to canvas.

follow --> rules of a canvas --> block --> commit --> rules of the next canvas --> ... --> is_over
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mlx_diffusiongemma.constraints.canvas_rules import CanvasRules
from mlx_diffusiongemma.constraints.token_automaton import FAR, TokenAutomaton
from mlx_diffusiongemma.errors import ConstraintError


class ConstrainedText:
    """An answer that follows a constraint: the state that it is in, and what may come next."""

    def __init__(
        self, automaton: TokenAutomaton, allowed: Mapping[int, Sequence[int]], max_tokens: int
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
        self._max_tokens, self._written = max_tokens, 0

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
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on behind these tokens, which the rules have allowed."""
        for token in tokens:
            after = self._automaton.after(self._state, token)
            if after is None:
                raise AssertionError(f"token {token} breaks the constraint")
            self._state = after
        self._written += len(tokens)

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow: the text is complete, or its end token is written."""
        leaving = self._automaton.target[self._automaton.source == self._state]
        return bool((leaving == self._automaton.end).all())
