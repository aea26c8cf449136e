"""Observing our model from outside: nothing is changed, every row is the one that was asked for."""

import mlx.core as mx
import numpy as np
import pytest
from recordings import tiny_folder
from small_traces import tiny_inputs

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.parity.layout import PASSES
from mlx_diffusiongemma.parity.ours import OurModel
from mlx_diffusiongemma.parity.taps import observing
from mlx_diffusiongemma.runtime import load_model

ROWS = np.array([0, 5, 18])


@pytest.fixture(scope="module")
def model():
    return load_model(tiny_folder("small_window"), dtype="float32")


@pytest.fixture(scope="module")
def tokens():
    return mx.array(tiny_inputs("small_window").arrays["passes/long/prompt"][None])


def test_every_operation_of_every_pass_is_observed(model, tokens):
    cache = model.make_cache()
    with observing(model, ROWS) as observation:
        model.prefill(tokens, cache)
    assert set(observation.notes()) == set(PASSES[0].operations(5))
    canvas = tokens[:, :12]
    for number, previous in ((1, None), (2, mx.zeros((1, 12, 321)))):
        with observing(model, ROWS[:2]) as observation:
            model.denoise(canvas, cache, previous)
        assert set(observation.notes()) == set(PASSES[number].operations(5))
    assert all(len(rows) == 2 for rows in observation.notes().values())


@pytest.mark.parametrize("chunk_size", [1, 5, 18])
def test_chunks_of_a_prompt_are_put_together(model, tokens, chunk_size):
    observations = []
    for size in (19, chunk_size):
        with observing(model, ROWS) as observation:
            model.prefill(tokens, model.make_cache(), size)
        observations.append(observation.notes())
    whole, pieces = observations
    for key, rows in whole.items():
        assert pieces[key].shape == rows.shape
        assert np.abs(pieces[key] - rows).max() < 1e-4, key


def test_watching_changes_no_number_and_leaves_nothing_behind(model, tokens):
    names = ("prepare_heads", "add_attention", "route", "add_feed_forward")
    before = [vars(kernels)[name] for name in names]
    module = model.model.decoder.self_conditioning
    plain = model.prefill(tokens, model.make_cache())
    with pytest.raises(KeyboardInterrupt), observing(model, ROWS):
        watched = model.prefill(tokens, model.make_cache())
        raise KeyboardInterrupt
    assert mx.array_equal(plain, watched)
    assert [vars(kernels)[name] for name in names] == before
    assert model.model.decoder.self_conditioning is module


def test_the_cache_holds_the_keys_and_values_that_were_observed(model, tokens):
    cache = model.make_cache()
    with observing(model, np.arange(19)) as observation:
        model.prefill(tokens, cache)
    for layer, kept in enumerate(cache.layers):
        for operation, array in zip(("keys", "values"), kept.state(), strict=True):
            stored = np.array(array[0].swapaxes(0, 1).flatten(1))
            assert np.array_equal(observation.notes()[layer, operation][-len(stored) :], stored)


def test_the_logits_of_a_prompt_are_those_of_its_rows(model, tokens):
    folder = tiny_folder("small_window")
    ours = OurModel.open(folder, str(folder))
    observed = ours.prefill(np.array(tokens[0]), ROWS)
    last = model.head(model.prefill(tokens, model.make_cache())[:, -1:])
    assert np.allclose(observed.logits[-1], np.array(last[0, 0]), atol=1e-5)
    assert observed.logits.shape == (3, 321)
