"""The automaton over tokens: edges between states, each with the tokens that lead along it.

    states of the text, then END; edges sorted by where they lead; labels are sets of classes

Shapes: S states, E edges, G labels, C classes of tokens, N tokens that some state allows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlx_diffusiongemma.constraints.byte_automaton import ByteAutomaton
from mlx_diffusiongemma.constraints.token_classes import token_classes
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary

FAR = 1 << 30  # tokens to the end where there is no way to it
_MIXERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """What tokens may follow each other; see `tokens_to_end` for what closes in time.

    Attributes:
        start: the state before the first token.
        end: the state behind an end token; only end tokens and padding lead on, to itself.
        source, target, label: int32 [E], edges sorted by `target`.
        label_classes: int32, the classes of all labels; `label_starts`: int64 [G].
        tokens: int32 [N], tokens by class; `class_starts`: int64 [C].
        accepting: bool [S], where the text may stop; `end` is one of these.
        tokens_to_end: int32 [S], the fewest tokens to an accepting state.
        vocab_size: V.
    """

    start: int
    end: int
    source: np.ndarray
    target: np.ndarray
    label: np.ndarray
    label_classes: np.ndarray
    label_starts: np.ndarray
    tokens: np.ndarray
    class_starts: np.ndarray
    accepting: np.ndarray
    tokens_to_end: np.ndarray
    vocab_size: int

    @cached_property
    def class_sizes(self) -> np.ndarray:
        """int64 [C], how many tokens each class has."""
        return np.diff(np.append(self.class_starts, len(self.tokens)))

    @cached_property
    def token_index(self) -> np.ndarray:
        """`tokens` as numpy takes them without converting them each time."""
        return self.tokens.astype(np.intp)

    @cached_property
    def class_of(self) -> np.ndarray:
        """int32 [V], the class of each token; C for tokens that no state allows."""
        classes = np.full(self.vocab_size, len(self.class_starts), np.int32)
        classes[self.tokens] = np.repeat(np.arange(len(self.class_starts)), self.class_sizes)
        return classes

    def classes_of(self, label: int) -> np.ndarray:
        """int32, the classes of a label."""
        following = self.label_starts[label + 1 : label + 2]
        return self.label_classes[self.label_starts[label] : (*following, None)[0]]

    def tokens_of(self, class_id: int) -> np.ndarray:
        """int32, the tokens of a class, in their order."""
        first = self.class_starts[class_id]
        return self.tokens[first : first + self.class_sizes[class_id]]

    def labels_with(self, classes: np.ndarray) -> np.ndarray:
        """The labels that have one of these classes."""
        some = np.isin(self.label_classes, classes)
        return np.flatnonzero(np.logical_or.reduceat(some, self.label_starts))

    def classes_on(self, labels: np.ndarray) -> np.ndarray:
        """bool [L, C]: the classes of the labels in bool [L, G]."""
        sizes = np.diff(np.append(self.label_starts, len(self.label_classes)))
        order = np.argsort(self.label_classes, kind="stable")
        firsts = np.searchsorted(self.label_classes[order], np.arange(len(self.class_starts)))
        of_entry = np.repeat(np.arange(len(sizes)), sizes)[order]
        return np.logical_or.reduceat(labels[:, of_entry], firsts, axis=1)

    def after(self, state: int, token: int) -> int | None:
        """The state after a token, None where it is not allowed."""
        edges = np.flatnonzero(self.source == state)
        fitting = np.isin(self.label[edges], self.labels_with(self.class_of[[token]]))
        return int(self.target[edges[fitting][0]]) if fitting.any() else None


def token_automaton(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Lift an automaton over bytes to tokens; a text that stops is followed by end tokens."""
    classes = token_classes(automaton, vocabulary)
    end = len(automaton.accepting)
    count = len(classes.starts)
    class_ids, source = np.nonzero(classes.turns >= 0)
    target = classes.turns[class_ids, source].astype(np.int64)
    # One class more for what ends a text, and one for what may stand behind an end token.
    stops = np.flatnonzero(automaton.accepting)
    padding = [end] * (2 if vocabulary.padding_ids else 1)
    source = np.concatenate([source, stops, padding])
    target = np.concatenate([target, np.full(len(stops), end), padding])
    class_ids = np.concatenate(
        [class_ids, np.full(len(stops), count), np.arange(count, count + len(padding))]
    )
    tails = [vocabulary.end_ids, vocabulary.padding_ids][: len(padding)]
    sizes = np.cumsum([len(classes.tokens), *map(len, tails)])
    edges = _edges(source, target, class_ids, end + 1)
    accepting = np.append(automaton.accepting, True)
    return TokenAutomaton(
        start=0,
        end=end,
        source=edges[0],
        target=edges[1],
        label=edges[2],
        label_classes=edges[3],
        label_starts=edges[4],
        tokens=np.concatenate([classes.tokens, *tails]).astype(np.int32),
        class_starts=np.concatenate([classes.starts, sizes[:-1]]).astype(np.int64),
        accepting=accepting,
        tokens_to_end=_tokens_to_end(edges[0], edges[1], accepting),
        vocab_size=vocabulary.size,
    )


def _edges(
    source: np.ndarray, target: np.ndarray, class_ids: np.ndarray, states: int
) -> tuple[np.ndarray, ...]:
    """`source`, `target`, `label`, `label_classes`, `label_starts` of single steps.

    Steps between the same two states become one edge; edges with the same classes share a label.
    """
    order = np.lexsort((class_ids, source, target))
    source, target, class_ids = source[order], target[order], class_ids[order]
    pairs = target * states + source
    firsts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
    sizes = np.diff(np.append(firsts, len(pairs)))
    # Equal sets are found by two sums of scrambled numbers, 128 bits together.
    scrambled = [(class_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(m) for m in _MIXERS]
    scrambled = [(x ^ (x >> np.uint64(29))) * np.uint64(_MIXERS[1]) for x in scrambled]
    sums = [np.add.reduceat(x ^ (x >> np.uint64(32)), firsts) for x in scrambled]
    keys = np.stack([*sums, sizes.astype(np.uint64)], axis=1)
    _, one, label = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    members = [class_ids[firsts[i] : firsts[i] + sizes[i]] for i in one]
    starts = np.cumsum([0, *(len(m) for m in members)])[:-1]
    return (
        source[firsts].astype(np.int32),
        target[firsts].astype(np.int32),
        label.reshape(-1).astype(np.int32),
        np.concatenate(members).astype(np.int32),
        starts.astype(np.int64),
    )


def _tokens_to_end(source: np.ndarray, target: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """int32 [S]: breadth first from the accepting states, against the edges."""
    distance = np.where(accepting, 0, FAR).astype(np.int32)
    order = np.argsort(source, kind="stable")
    leaving, reached = source[order], target[order]
    firsts = np.flatnonzero(np.append(True, leaving[1:] != leaving[:-1]))
    states = leaving[firsts]
    while True:
        nearest = np.minimum.reduceat(distance[reached], firsts) + 1
        better = np.minimum(distance[states], nearest)
        if np.array_equal(better, distance[states]):
            return distance
        distance[states] = better
