"""KV caches that go back: exactly, also after sliding layers moved on, or to the nearest mark."""

import mlx.core as mx
import numpy as np
import pytest
from test_cache import positions, rows

from mlx_diffusiongemma.model.cache import MOST_MARKS, KVCache, LayerCache

CANVAS = 4  # tokens


class Twin:
    """A full and a sliding layer, and beside them what they ought to hold, in plain Python.

    Every token is a number of its own, so that a token of a discarded past shows.
    """

    def __init__(self, window, spare):
        self.keep, self.spare = window - 1, spare
        self.cache = KVCache([LayerCache(), LayerCache(window, CANVAS, spare)])
        self.truth, self.first, self.marks, self.serial = [], 0, set(), 0

    def append(self, count):
        start = len(self.truth)
        new = rows(self.serial, count)
        self.truth += range(self.serial, self.serial + count)
        self.serial += count
        full, sliding = (layer.append(new, -new) for layer in self.cache.layers)
        self.cache.offset += count
        assert positions(full[0]) == self.truth
        assert positions(sliding[0]) == self.truth[max(0, start - self.keep) :]
        room = CANVAS if count == 1 else 0
        if len(self.truth) - self.first > self.keep + self.spare + room:
            self.first = len(self.truth) - self.keep - self.spare

    def canvas(self):
        self.first = max(self.first, len(self.truth) - self.keep - self.spare)
        for layer, seen in zip(self.cache.layers, (self.truth, self.seen()), strict=True):
            keys, values = layer.with_canvas(rows(-9, CANVAS), -rows(-9, CANVAS))
            assert positions(keys) == [*seen, -9, -8, -7, -6]
            assert positions(values) == [-p for p in positions(keys)]

    def mark(self, position):
        if position > len(self.truth) or self.reach(position) == position:
            self.marks.add(position)
        for layer in self.cache.layers:
            layer.mark(position)

    def reach(self, position):
        if self.keep == 0:
            return position  # nobody sees anything
        covered = [p for p in range(position + 1) if max(0, p - self.keep) >= self.first]
        return max({0, *covered, *(mark for mark in self.marks if mark <= position)})

    def rewind(self, position):
        want = self.reach(position)
        assert self.cache.rewind(position) == self.cache.offset == want
        if max(0, want - self.keep) < self.first:
            self.first = max(0, want - self.keep)
        del self.truth[want:]
        self.marks = {mark for mark in self.marks if mark <= want}
        for layer, seen in zip(self.cache.layers, (self.truth, self.seen()), strict=True):
            if self.serial and layer.arrays:
                assert positions(layer.state()[0]) == seen

    def seen(self):
        return self.truth[max(0, len(self.truth) - self.keep) :]


@pytest.mark.parametrize("spare", [0, 1, 5, 30])
@pytest.mark.parametrize("window", [1, 2, 8, 32])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_the_layers_hold_what_they_claim(window, spare, seed):
    random = np.random.default_rng([window, spare, seed])
    twin = Twin(window, spare)
    for _ in range(60):
        end = len(twin.truth)
        match random.choice(["append", "one", "canvas", "mark", "mark ahead", "rewind"]):
            case "append":
                twin.append(int(random.integers(1, 2 * window + 3)))
            case "one":
                for _ in range(int(random.integers(1, 2 * CANVAS + 2))):
                    twin.append(1)
            case "canvas":
                twin.canvas()
            case "mark" if end:
                twin.mark(int(random.integers(1, end + 1)))
            case "mark ahead":
                twin.mark(end + int(random.integers(1, window + 1)))
            case "rewind":
                twin.rewind(int(random.integers(0, end + 1)))


@pytest.mark.parametrize("length", range(31, 98, 3))
@pytest.mark.parametrize("back", [0, 1, 16, 31, 32, 33, 64])
def test_a_spare_window_goes_back_that_far_from_anywhere(length, back):
    twin = Twin(32, spare=32)
    twin.append(length)
    twin.append(40)
    position = max(length + 40 - back, 0)
    within = back <= 32 or length + 40 <= 63
    assert twin.reach(position) == (position if within else 0)
    twin.rewind(position)
    twin.append(5)


def test_a_mark_set_ahead_is_kept_by_the_chunk_that_passes_it():
    twin = Twin(8, spare=0)
    twin.append(3)
    twin.mark(20)
    twin.append(50)
    twin.append(50)
    twin.rewind(22)
    assert len(twin.truth) == 20
    twin.append(9)


def test_a_mark_that_was_never_reached_is_forgotten():
    twin = Twin(8, spare=0)
    twin.append(10)
    twin.cache.mark(15)
    twin.rewind(9)
    twin.append(30)
    assert twin.cache.rewind(20) == 0


def test_a_mark_costs_nothing_while_the_layer_still_has_its_window():
    cache = KVCache([LayerCache(8, spare=8)])
    cache.mark(6)
    cache.layers[0].append(rows(0, 15), rows(0, 15))
    assert len(cache.arrays) == 2
    cache.layers[0].append(rows(15, 15), rows(15, 15))
    assert len(cache.arrays) == 4
    assert sum(array.shape[2] for array in cache.arrays[2:]) == 2 * 6


def test_a_saved_window_does_not_keep_the_buffer_that_it_came_from():
    cache = KVCache([LayerCache(8, 4, spare=0)])
    cache.mark(8)
    tokens = mx.zeros((1, 1, 2**18, 8))
    cache.layers[0].append(tokens, tokens)
    del tokens
    mx.eval(cache.arrays)
    mx.clear_cache()
    before = mx.get_active_memory()
    cache.layers.clear()
    assert before - mx.get_active_memory() < 2**20  # the chunk was 8 MB


def test_of_too_many_marks_the_one_goes_that_saves_least():
    cache = KVCache([LayerCache(4, spare=0)])
    for mark in (10, 12, 30, 50):
        cache.mark(mark)
    cache.mark(55)  # the newest stays, though it saves least but for 12
    cache.mark(55)
    cache.layers[0].append(rows(0, 200), rows(0, 200))
    cache.offset = 200
    reached = [cache.rewind(position) for position in (199, 54, 49, 29, 9)]
    assert reached == [55, 50, 30, 10, 0]
    assert MOST_MARKS == 4


def test_a_place_that_is_lost_cannot_be_marked():
    twin = Twin(8, spare=0)
    twin.append(40)
    twin.cache.mark(20)
    twin.append(1)
    assert twin.cache.rewind(20) == 0


def test_layers_out_of_step_go_back_to_where_all_of_them_were():
    """An interrupt may come when some layers have read a chunk and others have not."""
    cache = KVCache([LayerCache(8, 4, 0), LayerCache(), LayerCache(8, 4, 0)])
    cache.mark(5)
    for layer in cache.layers:
        layer.append(rows(0, 12), -rows(0, 12))
    cache.offset = 12
    cache.layers[0].append(rows(12, 6), -rows(12, 6))  # has lost the window before 12
    assert cache.rewind(12) == 5
    for layer in cache.layers:
        assert positions(layer.state()[0]) == [0, 1, 2, 3, 4]
