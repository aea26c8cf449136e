"""Texts of an automaton by a random walk: what a constraint lets through, whoever writes."""

from functools import lru_cache

import numpy as np

from mlx_diffusiongemma.constraints.byte_automaton import ByteAutomaton

_LONG = 120  # bytes after which a walk takes the shortest way to an end


def random_text(automaton: ByteAutomaton, rng: np.random.Generator) -> bytes:
    """One text of the language."""
    to_end = _bytes_to_end(automaton)
    state, written = 0, bytearray()
    while True:
        steps = np.flatnonzero(automaton.next[state] >= 0)
        late = len(written) > _LONG
        if automaton.accepting[state] and (late or len(steps) == 0 or rng.random() < 0.1):
            return bytes(written)
        if late:
            steps = steps[[np.argmin(to_end[automaton.next[state, steps]])]]
        step = rng.choice(steps)
        written.append(rng.choice(np.flatnonzero(automaton.byte_class == step)))
        state = automaton.next[state, step]


@lru_cache(maxsize=1)
def _bytes_to_end(automaton: ByteAutomaton) -> np.ndarray:
    far = 1 << 20
    distance = np.where(automaton.accepting, 0, far)
    while True:
        nearest = np.where(automaton.next >= 0, distance[automaton.next], far).min(axis=1)
        shorter = np.minimum(distance, nearest + 1)
        if np.array_equal(shorter, distance):
            return distance
        distance = shorter
