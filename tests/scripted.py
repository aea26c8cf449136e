"""Stand-ins for a trained model: what they predict is written in the test."""

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.generation import alone, block_loop
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.prefix_cache import PrefixCache


def certain_of(tokens, vocab_size, height=200.0):
    """Logits float32 [1, L, V] that leave no doubt about `tokens`."""
    logits = np.zeros((1, len(tokens), vocab_size), np.float32)
    logits[0, np.arange(len(tokens)), tokens] = height
    return mx.array(logits)


def generate_blocks(model, prompt, **asked):
    """The events of a `block_loop` whose passes the model does, one by one."""
    cache = PrefixCache(model)
    return alone(block_loop(model.config, prompt, cache, **asked), cache)


class ScriptedModel:
    """Has the methods of `DiffusionGemma` that the loops use; writes the given blocks at once.

    Remembers what it was asked in `prefilled` (token lists) and `denoised` (canvas, previous).
    """

    def __init__(self, config, blocks):
        self.config = config
        self.blocks = blocks
        self.prefilled = []
        self.denoised = []

    def make_cache(self, rewind_tokens=0):
        return _Offset()

    def prefill(self, tokens, cache, chunk_size=2048):
        self.prefilled.append(tokens[0].tolist())
        cache.offset += tokens.shape[1]
        return tokens

    def predict(self, canvas, cache, belief):
        previous = None if belief is None else belief.logits.values()
        self.denoised.append((canvas, previous))
        block = self.blocks[len(self.prefilled) - 1]
        if callable(block):
            return Logits(block(canvas, previous))
        return Logits(certain_of(block, self.config.vocab_size))


class _Offset:
    """A KV cache that only counts."""

    arrays = ()
    nbytes = 0

    def __init__(self):
        self.offset = 0

    def rewind(self, position):
        self.offset = min(self.offset, position)
        return self.offset

    def mark(self, position):
        pass

    def expect(self, tokens):
        pass


class CountingDraws(SeededDraws):
    """Seeded draws that count how often each kind is asked."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.counts = {"initial_canvas": 0, "candidates": 0, "renoise": 0}

    def initial_canvas(self, shape, vocab_size):
        self.counts["initial_canvas"] += 1
        return super().initial_canvas(shape, vocab_size)

    def candidates(self, logits, statistics):
        self.counts["candidates"] += 1
        return super().candidates(logits, statistics)

    def renoise(self, shape, vocab_size):
        self.counts["renoise"] += 1
        return super().renoise(shape, vocab_size)
