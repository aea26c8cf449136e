"""KV caches: what they keep, what a canvas sees, and that nothing is copied or lost."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma.model.attention import prefill_mask
from mlx_diffusiongemma.model.cache import LayerCache


def rows(start, count):
    """Keys [1, 1, count, 1] that hold their own position; values are their negatives."""
    return mx.arange(start, start + count, dtype=mx.float32).reshape(1, 1, count, 1)


def positions(array):
    return np.array(array).reshape(-1).astype(int).tolist()


def fill(cache, chunks):
    start, seen = 0, None
    for count in chunks:
        keys, values = cache.append(rows(start, count), -rows(start, count))
        assert positions(values) == [-p for p in positions(keys)]
        start, seen = start + count, positions(keys)
    return seen


@pytest.mark.parametrize("chunks", [[1], [5], [600], [1, 1, 1], [511, 1, 1], [512, 512, 7]])
def test_a_full_layer_keeps_everything_in_order(chunks):
    cache = LayerCache()
    assert fill(cache, chunks) == list(range(sum(chunks)))
    assert positions(cache.state()[0]) == list(range(sum(chunks)))


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("chunks", [[1], [7], [8], [9], [3, 4], [3, 5], [1] * 20, [30, 1], [5, 30]])
def test_a_sliding_layer_keeps_the_last_window_minus_one(window, chunks):
    cache, total = LayerCache(window), sum(chunks)
    seen = fill(cache, chunks)
    kept = max(0, min(total, window - 1))
    assert positions(cache.state()[0]) == list(range(total - kept, total))
    before = min(total - chunks[-1], window - 1)
    assert seen == list(range(total - chunks[-1] - before, total))


@pytest.mark.parametrize("window", [None, 4])
def test_a_canvas_follows_the_stored_tokens_and_leaves_them_alone(window):
    cache = LayerCache(window)
    fill(cache, [6])
    stored = positions(cache.state()[0])
    for _ in range(3):
        keys, values = cache.with_canvas(rows(100, 5), -rows(100, 5))
        assert positions(keys) == stored + [100, 101, 102, 103, 104]
        assert positions(values) == [-p for p in positions(keys)]
    assert positions(cache.state()[0]) == stored
    assert positions(cache.append(rows(6, 2), -rows(6, 2))[0]) == [*stored, 6, 7]


def test_a_canvas_in_front_of_nothing():
    keys, _ = LayerCache(4).with_canvas(rows(0, 3), -rows(0, 3))
    assert positions(keys) == [0, 1, 2]


def test_what_was_announced_is_allocated_once():
    cache = LayerCache()
    cache.expect(1700)
    cache.append(rows(0, 10), rows(0, 10))
    first = cache.arrays[0].shape[2]
    cache.append(rows(10, 1690), rows(10, 1690))
    assert cache.arrays[0].shape[2] == first == 2048


def test_a_sliding_buffer_stays_as_small_as_window_and_canvas():
    cache = LayerCache(100, canvas_length=32)
    cache.expect(10_000)
    cache.append(rows(0, 5000), rows(0, 5000))
    cache.with_canvas(rows(0, 32), rows(0, 32))
    assert cache.arrays[0].shape[2] <= 99 + 32


def test_a_denoising_step_writes_in_place():
    """The prefix is not copied: memory does not rise by a second buffer while a canvas is added."""
    cache = LayerCache()
    size = 2**20
    cache.expect(size)
    tokens = mx.zeros((1, 1, size - 512, 8))
    cache.append(tokens, tokens)
    del tokens
    mx.eval(cache.arrays)
    canvas = mx.ones((1, 1, 32, 8))
    mx.eval(canvas)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    keys, values = cache.with_canvas(canvas, canvas)
    total = mx.sum(keys[:, :, -32:]) + mx.sum(values[:, :, -32:])
    mx.eval(total, cache.arrays)
    assert total.item() == 2 * 32 * 8
    assert mx.get_peak_memory() - before < 2**20  # one buffer is 32 MB


def test_tokens_that_come_one_by_one_copy_the_window_once_a_canvas():
    canvas_length, window, heads = 8, 2**14, 8
    cache = LayerCache(window, canvas_length)
    tokens = mx.zeros((1, heads, window, 8))
    cache.append(tokens, tokens)
    del tokens
    token = mx.ones((1, heads, 1, 8))
    mx.eval(cache.arrays, token)
    copies = []
    for _ in range(4 * canvas_length):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        keys, values = cache.append(token, token)
        total = mx.sum(keys[:, :, -2:]) + mx.sum(values[:, :, -2:])
        mx.eval(total, cache.arrays)
        copies.append(mx.get_peak_memory() - before > 2**20)  # one buffer is 4 MB
        del keys, values
        assert cache.state()[0].shape[2] == window - 1
    assert sum(copies) <= 4


def test_a_canvas_after_tokens_that_came_one_by_one_copies_at_its_first_step_alone():
    cache = LayerCache(4, canvas_length=8)
    fill(cache, [1] * 9)
    assert cache.stored > 3
    for _ in range(2):
        assert positions(cache.with_canvas(rows(9, 8), rows(9, 8))[0])[:3] == [6, 7, 8]
        assert cache.stored == 3
        assert cache.arrays[0].shape[2] <= 3 + 8


@pytest.mark.parametrize("window", [None, 1, 3, 5])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 4), (4, 4), (3, 8), (6, 6)])
def test_the_prefill_mask_is_causal_within_the_window(queries, keys, window):
    if window is not None:
        keys = min(keys, window - 1 + queries)  # what a sliding cache returns
    mask = prefill_mask(queries, keys, window)
    got = np.ones((queries, keys), bool)
    if isinstance(mask, str):
        assert mask == "causal"
        got = np.tril(got, keys - queries)
    elif mask is not None:
        got = np.array(mask)
    for query in range(queries):
        position = keys - queries + query
        for key in range(keys):
            want = key <= position and (window is None or key > position - window)
            assert got[query, key] == want, (query, key)
