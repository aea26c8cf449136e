"""The most likely text of a canvas that an automaton accepts, exactly, by dynamic programming.

logits --> best token of each class --> best class of each label --> best path through the states

Viterbi over positions x states, as in DINGO (arXiv 2505.23061), on classes of tokens instead of
tokens. Shapes: L canvas, V vocabulary, C classes, G labels, S states, E edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mlx_diffusiongemma.constraints.token_automaton import TokenAutomaton

# Worth more than any logits along a canvas, and far from what float64 rounds away.
_KEPT = 1e7
_WORST = -1e6  # for -inf: a token is unlikely, but a text must come out


@dataclass(frozen=True, eq=False)
class PathProblem:
    """Which paths a canvas may take.

    Attributes:
        automaton: the automaton over tokens.
        start: the state before the first position.
        room: positions that text may fill; behind them stand end tokens.
        final: bool [S], the states that may stand behind the last position.
        length: L.
        allowed: by position, the only tokens that may stand there: int32, sorted.
    """

    automaton: TokenAutomaton
    start: int
    room: int
    final: np.ndarray
    length: int
    allowed: Mapping[int, np.ndarray] = field(default_factory=dict)

    @cached_property
    def reachable(self) -> tuple[np.ndarray, np.ndarray]:
        """bool [L + 1, S], states on some allowed path; bool [L, G], labels on one, by position."""
        return _reachable(self)

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`source`, `target` and `label` of the edges that some position can use."""
        some: np.ndarray = np.any(self.reachable[0], axis=0)
        used = some[self.automaton.source] & some[self.automaton.target]
        return self.automaton.source[used], self.automaton.target[used], self.automaton.label[used]


def class_maxima(logits: np.ndarray, problem: PathProblem) -> np.ndarray:
    """float32 [L, C]: the highest logit of each class; logits float32 [L, V].

    Where only some tokens are allowed, classes without any are -inf.
    """
    automaton = problem.automaton
    best = np.empty((len(logits), len(automaton.class_starts)), np.float32)
    by_class = np.empty(len(automaton.tokens), np.float32)
    for position, row in enumerate(logits):  # a row fits the processor's cache, a canvas does not
        np.take(row, automaton.token_index, out=by_class, mode="clip")  # "raise" copies once more
        np.maximum.reduceat(by_class, automaton.class_starts, out=best[position])
    best = np.maximum(np.nan_to_num(best, nan=_WORST), _WORST)
    class_of = automaton.class_of if problem.allowed else None
    for position, tokens in problem.allowed.items():
        assert class_of is not None
        best[position] = -np.inf
        worth = np.maximum(logits[position, tokens], _WORST)
        np.maximum.at(best[position], class_of[tokens], worth)
    return best


def best_path(
    problem: PathProblem,
    logits: np.ndarray,
    maxima: np.ndarray,
    kept: dict[int, int] | None = None,
) -> np.ndarray:
    """int32 [L]: the most likely tokens that are allowed; ties go to the lower state and token.

    `logits` float32 [L, V] and their `class_maxima`. With tokens in `kept`, by position, as many
    of them as possible stand in the result, and the rest is the most likely beside them.
    """
    automaton = problem.automaton
    weights = np.maximum.reduceat(
        maxima[:, automaton.label_classes], automaton.label_starts, axis=1
    ).astype(np.float64)
    held = _with_kept(problem, weights, logits, kept or {})
    scores = _scores(problem, weights)
    tokens = np.empty(problem.length, np.int32)
    state = int(np.argmax(np.where(problem.final, scores[-1], -np.inf)))
    for position in range(problem.length - 1, -1, -1):
        first, last = np.searchsorted(automaton.target, [state, state + 1])
        edges = np.arange(first, last)
        assert position < problem.room or state == automaton.end, "text behind its room"
        label = automaton.label[edges]
        worth = scores[position, automaton.source[edges]] + weights[position, label]
        edge = edges[int(np.argmax(worth))]
        chosen = int(automaton.label[edge])
        token = held.get((position, chosen))
        if token is None:
            token = _best_token(problem, position, chosen, logits, maxima)
        tokens[position] = token
        state = int(automaton.source[edge])
    return tokens


def _with_kept(
    problem: PathProblem, weights: np.ndarray, logits: np.ndarray, kept: dict[int, int]
) -> dict[tuple[int, int], int]:
    """Raise the labels that hold a kept token; which token that is, by position and label."""
    automaton = problem.automaton
    held: dict[tuple[int, int], int] = {}
    for position, token in kept.items():
        if token not in problem.allowed.get(position, (token,)):
            continue
        labels = automaton.labels_with(automaton.class_of[token : token + 1])
        weights[position, labels] = _KEPT + max(float(logits[position, token]), _WORST)
        held |= {(position, int(label)): token for label in labels}
    return held


def _scores(problem: PathProblem, weights: np.ndarray) -> np.ndarray:
    """float64 [L + 1, S]: of the best path to each state before each position and at the end."""
    automaton = problem.automaton
    scores = np.full((problem.length + 1, len(automaton.accepting)), -np.inf)
    scores[0, problem.start] = 0.0
    source, target, label = problem.edges
    firsts = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
    states = target[firsts]
    for position in range(problem.length):
        if position >= problem.room:
            ending = automaton.target == automaton.end
            worth = scores[position, automaton.source[ending]]
            worth = worth + weights[position, automaton.label[ending]]
            scores[position + 1, automaton.end] = worth.max()
        else:
            worth = scores[position, source] + weights[position, label]
            scores[position + 1, states] = np.maximum.reduceat(worth, firsts)
    return scores


def _reachable(problem: PathProblem) -> tuple[np.ndarray, np.ndarray]:
    """bool [L + 1, S], states on some allowed path; bool [L, G], labels on one, by position."""
    automaton, length = problem.automaton, problem.length
    source, target = automaton.source, automaton.target
    reached = np.zeros((length + 1, len(automaton.accepting)), bool)
    reached[0, problem.start] = True
    for position in range(length):
        edges = reached[position, source] & _open_edges(problem, position)
        reached[position + 1, target[edges]] = True
    reached[length] &= problem.final
    labels = np.zeros((length, len(automaton.label_starts)), bool)
    for position in range(length - 1, -1, -1):
        edges = reached[position, source] & reached[position + 1, target]
        edges &= _open_edges(problem, position)
        labels[position, automaton.label[edges]] = True
        reached[position] = False
        reached[position, source[edges]] = True
    return reached, labels


def _open_edges(problem: PathProblem, position: int) -> np.ndarray:
    """bool [E]: what the position itself leaves of the edges."""
    automaton = problem.automaton
    behind = position >= problem.room
    edges = automaton.target == automaton.end if behind else np.ones(len(automaton.target), bool)
    if position in problem.allowed:
        labels = np.zeros(len(automaton.label_starts), bool)
        labels[automaton.labels_with(automaton.class_of[problem.allowed[position]])] = True
        edges = edges & labels[automaton.label]
    return edges


def _best_token(
    problem: PathProblem, position: int, label: int, logits: np.ndarray, maxima: np.ndarray
) -> int:
    automaton = problem.automaton
    classes = automaton.classes_of(label)
    tokens = automaton.tokens_of(int(classes[int(np.argmax(maxima[position, classes]))]))
    if position in problem.allowed:
        tokens = np.intersect1d(tokens, problem.allowed[position])
    return int(tokens[int(np.argmax(logits[position, tokens]))])
