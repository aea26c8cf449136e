"""How far the probabilities of choices are from those of the data that the demo was trained on.

    python benchmarks/choices.py [SENTENCES] [SUMS]

A gap of "The shy fox lives ___." was filled in training with each of six homes equally often, and
their sentences have 6 to 8 tokens: the truth is known, and whether length counts can be seen. Sums
have one right answer among some of one, two and three digits.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma import GenerationOptions, load
from mlx_diffusiongemma.prefix_cache import PrefixCache

SLOTS = {
    "The {adjective} {animal} lives {home}.": {
        "adjective": ["small", "big", "brave", "shy", "clever", "happy", "kind", "young"],
        "animal": ["fox", "cat", "dog", "owl", "hen", "bear", "frog", "duck", "mouse", "rabbit"],
        "home": [
            "in the forest",
            "near a river",
            "on a farm",
            "under a hill",
            "by the sea",
            "in a red house",
        ],
    },
    "{name} found a {thing} {place}.": {
        "name": ["Tom", "Mia", "Sam", "Lily", "Ben", "Ruby", "Max", "Anna", "Leo", "Nora"],
        "thing": ["ball", "hat", "kite", "boat", "drum", "lamp", "bell", "cake"],
        "place": [
            "under a tree",
            "on the road",
            "in the grass",
            "behind a rock",
            "in the snow",
            "at the market",
        ],
    },
}
Way = Callable[[str, Sequence[str]], np.ndarray]


class Ways:
    """Ways to give each of some texts a probability."""

    def __init__(self, length: int = 16):
        self._runtime = load("demo")
        self._length = length
        self._rng = np.random.default_rng(0)

    def choose(self, noises: int) -> Way:
        """What the package does."""

        def probabilities(prompt: str, choices: Sequence[str]) -> np.ndarray:
            seed = int(self._rng.integers(1 << 30))
            result = self._runtime.choose(prompt, choices, seed=seed, noises=noises)
            return np.array(list(result.probabilities.values()))

        return probabilities

    def positions(self, prompt: str, choices: Sequence[str]) -> np.ndarray:
        """One canvas of noise; every position on its own, multiplied."""
        (row,) = self._log_probabilities(prompt, [self._noise()])
        worth = [sum(row[at][token] for at, token in enumerate(c)) for c in self._rows(choices)]
        return _normalised(worth)

    def others_given(self, prompt: str, choices: Sequence[str]) -> np.ndarray:
        """Every token where all the others of its choice stand, multiplied."""
        worth = []
        for tokens in self._rows(choices):
            noise = self._noise()
            canvases = [[*tokens, *noise[len(tokens) :]] for _ in tokens]
            for at, canvas in enumerate(canvases):
                canvas[at] = noise[at]
            rows = self._log_probabilities(prompt, canvases)
            worth.append(sum(row[at][tokens[at]] for at, row in enumerate(rows)))
        return _normalised(worth)

    def every_token(self, prompt: str, choices: Sequence[str]) -> np.ndarray:
        """Every token where those before it stand, out of all tokens, multiplied."""
        rows, noise = self._rows(choices), self._noise()
        written = sorted({tokens[:at] for tokens in rows for at in range(len(tokens))})
        canvases = [[*before, *noise[len(before) :]] for before in written]
        said = dict(zip(written, self._log_probabilities(prompt, canvases), strict=True))
        worth = [sum(said[c[:at]][at][token] for at, token in enumerate(c)) for c in rows]
        return _normalised(worth)

    def left_to_right(self, prompt: str, choices: Sequence[str]) -> np.ndarray:
        """The same by the prefill pass, as mode "ar" would write them."""
        runtime, worth = self._runtime, []
        before = runtime.tokenizer.encode_prompt(prompt)
        for tokens in self._rows(choices):
            hidden = runtime.model.prefill(
                mx.array([[*before, *tokens]]), runtime.model.make_cache()
            )
            rows = np.array(_log_softmax(runtime.model.head(hidden)))[0, len(before) - 1 :]
            worth.append(sum(rows[at][token] for at, token in enumerate(tokens)))
        return _normalised(worth)

    def _rows(self, choices: Sequence[str]) -> list[tuple[int, ...]]:
        end = max(self._runtime.tokenizer.eos_token_ids)
        return [(*self._runtime.tokenizer.encode_text(choice), end) for choice in choices]

    def _noise(self) -> list[int]:
        return self._rng.integers(0, self._runtime.config.vocab_size, self._length).tolist()

    def _log_probabilities(self, prompt: str, canvases: list[list[int]]) -> list[np.ndarray]:
        cache = PrefixCache(self._runtime.model)
        cache.read(self._runtime.tokenizer.encode_prompt(prompt))
        rows, none = [mx.array([canvas]) for canvas in canvases], [None] * len(canvases)
        logits = self._runtime.model.predict_rows(rows, [cache.kv] * len(rows), none)
        return [np.array(_log_softmax(row.values()))[0] for row in logits]

    def answer(self, prompt: str) -> str:
        """What `generate` writes."""
        return self._runtime.generate(prompt, GenerationOptions(seed=1)).text

    def lengths(self, choices: Sequence[str]) -> list[int]:
        """Tokens of each choice, its end token counted."""
        return [len(row) for row in self._rows(choices)]


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _normalised(log_worth: Sequence[float]) -> np.ndarray:
    worth = np.exp(np.array(log_worth, np.float64) - max(log_worth))
    return worth / worth.sum()


def gap(rng: random.Random) -> tuple[str, list[str]]:
    """A sentence with a gap, and the sentences that fill it."""
    sentence, slots = rng.choice(list(SLOTS.items()))
    words = {slot: rng.choice(options) for slot, options in slots.items()}
    hidden = rng.choice(list(slots))
    choices = [sentence.format(**{**words, hidden: option}) for option in slots[hidden]]
    return "Fill the gap: " + sentence.format(**{**words, hidden: "___"}), choices


def total(rng: random.Random) -> tuple[str, list[str]]:
    """A sum; the first choice is right."""
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    right = a + b
    near = {right + by for by in (-10, -1, 1, 10)} | {right // 10, right % 10, 10 * right + 1}
    wrong = rng.sample(sorted(n for n in near if n >= 0 and n != right), 4)
    return f"{a} + {b} =", [f"{a} + {b} = {number}" for number in (right, *wrong)]


def main() -> None:
    """Print a table."""
    sentences, sums = (int(n) for n in [*sys.argv[1:], "24", "40"][:2])
    ways, rng = Ways(), random.Random(1)
    gaps, totals = [gap(rng) for _ in range(sentences)], [total(rng) for _ in range(sums)]
    said = [ways.answer(prompt) for prompt, _ in totals]
    print(
        f"{'way':34} {'KL, nats':>9} {'a token':>8} {'sums right':>11} {'as said':>8} {'s each':>7}"
    )
    table: dict[str, Way] = {
        "choose, 4 noises (the default)": ways.choose(4),
        "choose, 1 noise": ways.choose(1),
        "all tokens by those before": ways.every_token,
        "positions on their own": ways.positions,
        "all tokens by all others": ways.others_given,
        "from left to right, prefill pass": ways.left_to_right,
    }
    for name, way in table.items():
        started = time.perf_counter()
        found = [np.maximum(way(*example), 1e-12) for example in gaps]
        seconds = (time.perf_counter() - started) / len(gaps)
        far = [-np.mean(np.log(p)) - math.log(len(p)) for p in found]
        lengths = [ways.lengths(choices) for _, choices in gaps]
        pairs = zip(lengths, found, strict=True)
        slopes = [np.polyfit(n, np.log(p), 1)[0] for n, p in pairs if len({*n}) > 1]
        best = [(choices, int(np.argmax(way(p, choices)))) for p, choices in totals]
        right = np.mean([at == 0 for _, at in best])
        same = np.mean([c[at] == text for (c, at), text in zip(best, said, strict=True)])
        numbers = f"{np.mean(far):9.3f} {np.mean(slopes):+8.2f} {right:11.0%} {same:8.0%}"
        print(f"{name:34} {numbers} {seconds:7.2f}", flush=True)


if __name__ == "__main__":
    main()
