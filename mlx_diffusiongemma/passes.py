"""What the loops ask of the network, so that whoever drives them decides how it is done.

    loop --> Read, Predict, Evaluate --> driver --> answer --> loop

A loop is a generator that yields its passes beside its events, and is sent the answer to each. One
driver does every pass as it comes (`carried_out`); another one collects those of several loops and
does them together (`batch`). The loop is the same.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from mlx_diffusiongemma.kernels import Belief, Logits


@dataclass(frozen=True, eq=False)
class Read:
    """Read tokens into the KV cache. No answer.

    Attributes:
        tokens: what follows the tokens that the cache holds; at least one.
    """

    tokens: list[int]


@dataclass(frozen=True, eq=False)
class Predict:
    """A decoder pass over the canvas; the answer is its logits [1, L, V] at temperature 1.

    Attributes:
        canvas: int32 [1, L].
        belief: what the step before believed; None at the first step.
    """

    canvas: mx.array
    belief: Belief | None


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Compute arrays that are still lazy. No answer: they are numbers then.

    What is left lazy belongs to its thread: a consumer in another one could not read it.
    """

    arrays: tuple[mx.array, ...]


Pass = Read | Predict | Evaluate
Answer = Logits | None
E = TypeVar("E")
R = TypeVar("R")


def carried_out(
    loop: Generator[Pass | E, Answer, R],
    predict: Callable[[Predict], Logits],
    read: Callable[[list[int]], None],
) -> Generator[E, None, R]:
    """The events of a loop, every pass done as it comes; returns what the loop returns."""
    answer: Answer = None
    try:
        while True:
            try:
                asked = loop.send(answer)
            except StopIteration as end:
                returned: R = end.value
                return returned
            answer = None
            if isinstance(asked, Predict):
                answer = predict(asked)
            elif isinstance(asked, Read):
                read(asked.tokens)
            elif isinstance(asked, Evaluate):
                mx.eval(*asked.arrays)
            else:
                yield asked
    finally:
        loop.close()
