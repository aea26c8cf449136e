"""Several sequences in one pass: each gets what it gets alone."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
from tolerances import PARITY

from mlx_diffusiongemma.model.chunks import packed
from mlx_diffusiongemma.model.self_conditioning import believed
from mlx_diffusiongemma.prefix_cache import PrefixCache, read_together

VOCABULARY, WINDOW = 64, 8
PROMPTS = (3, 30, 1, 8)  # below, beyond and at the window, and a single token
CANVASES = (8, 5, 8, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    values = tiny.config_values(vocab_size=VOCABULARY, sliding_window=WINDOW)
    return tiny.load(tmp_path_factory.mktemp("rows"), values, tiny.random_tensors(values, seed=4))


def drawn(lengths, seed):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]


def alone(model, prompt, blocks):
    """The cache and the logits of two steps for one sequence, block after block."""
    cache, logits = model.make_cache(), []
    model.prefill(mx.array([prompt], mx.int32), cache)
    for block in blocks:
        canvas = mx.array([block], mx.int32)
        first = model.denoise(canvas, cache, None)
        logits += [first, model.denoise(canvas, cache, first / 0.7)]
        model.prefill(canvas, cache)
    return cache, logits


def assert_close(one, other):
    assert one.shape == other.shape
    np.testing.assert_allclose(np.array(one), np.array(other), atol=PARITY["logits"])


@pytest.mark.parametrize("chunk_size", [2048, 7, 1])
def test_each_sequence_gets_what_it_gets_alone(model, chunk_size):
    prompts, blocks = drawn(PROMPTS, 1), [drawn(CANVASES, 2), drawn(CANVASES, 3)]
    caches = [model.make_cache() for _ in prompts]
    want = [alone(model, p, own) for p, *own in zip(prompts, *blocks, strict=True)]
    model.prefill_rows(prompts, caches, chunk_size)
    for turn, canvases in enumerate(blocks):
        arrays = [mx.array([canvas], mx.int32) for canvas in canvases]
        first = model.predict_rows(arrays, caches, [None] * len(arrays))
        # Half of the rows are at their first step while the others are at their second.
        beliefs = [believed(one.at(0.7)) if row % 2 else None for row, one in enumerate(first)]
        second = model.predict_rows(arrays, caches, beliefs)
        for row, (_, logits) in enumerate(want):
            assert_close(first[row].values(), logits[2 * turn])
            assert_close(second[row].values(), logits[2 * turn + row % 2])
        model.prefill_rows(canvases, caches, chunk_size)
    for cache, (cold, _) in zip(caches, want, strict=True):
        assert cache.offset == cold.offset
        for layer, other in zip(cache.layers, cold.layers, strict=True):
            for one, two in zip(layer.state(), other.state(), strict=True):
                assert_close(one, two)


def test_caches_know_what_was_read_into_them_together(model):
    """The end of the context is counted by that."""
    prompts, blocks = drawn(PROMPTS, 1), drawn(CANVASES, 2)
    caches = [PrefixCache(model) for _ in prompts]
    for rows in prompts, blocks:
        read_together(model, list(zip(caches, rows, strict=True)))
    assert [cache.tokens for cache in caches] == [
        p + b for p, b in zip(prompts, blocks, strict=True)
    ]
    assert [cache.kv.offset for cache in caches] == [len(cache.tokens) for cache in caches]
    assert all(cache.nbytes for cache in caches)


def test_rows_are_packed_into_full_chunks_in_order():
    chunks = packed([3, 5, 1], 4)
    assert chunks == [
        [(0, slice(0, 3)), (1, slice(0, 1))],
        [(1, slice(1, 5))],
        [(2, slice(0, 1))],
    ]


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 100])
def test_chunks_hold_every_token_once(chunk_size):
    lengths = [4, 1, 9, 2]
    chunks = packed(lengths, chunk_size)
    pieces = [(row, at) for chunk in chunks for row, piece in chunk for at in range(100)[piece]]
    assert pieces == [(row, at) for row, length in enumerate(lengths) for at in range(length)]
    sizes = [sum(piece.stop - piece.start for _, piece in chunk) for chunk in chunks]
    assert all(size == chunk_size for size in sizes[:-1]) and sizes[-1] <= chunk_size


def test_passes_are_counted(model):
    caches = [model.make_cache() for _ in range(2)]
    assert model.prefill_rows(drawn((5, 6), 5), caches, 4) == 3


def test_one_row_computes_the_very_numbers_of_a_single_pass(model):
    prompt, canvas = drawn((9, 8), 6)
    caches = [model.make_cache(), model.make_cache()]
    for cache in caches:
        model.prefill(mx.array([prompt], mx.int32), cache)
    one = model.denoise(mx.array([canvas], mx.int32), caches[0], None)
    (other,) = model.predict_rows([mx.array([canvas], mx.int32)], [caches[1]], [None])
    assert np.array_equal(np.array(one), np.array(other.values()))
