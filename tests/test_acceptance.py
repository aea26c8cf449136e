"""Samplers: who is accepted with which token, against numbers written out by hand."""

import math

import mlx.core as mx
from scripted import CountingDraws

from mlx_diffusiongemma import sampling
from mlx_diffusiongemma.acceptance import SAMPLERS
from mlx_diffusiongemma.denoising import denoise
from mlx_diffusiongemma.kernels import Logits
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.stopping import Shown

V, L = 11, 6


def accept(name, probabilities, *, canvas=None, before=None, draws=None, **settings):
    """Accepted positions and their tokens, for rows of probabilities."""
    logits = Logits(mx.array([[[math.log(p) for p in row] for row in probabilities]]))
    held = None
    if before is not None:
        mask = mx.array([before]).astype(mx.bool_)
        held = Shown(mx.zeros(mask.shape, mx.int32), mask, mx.zeros(mask.shape))
    accepted, tokens = SAMPLERS[name](
        logits,
        sampling.logit_statistics(logits),
        mx.array([canvas or [0] * len(probabilities)]),
        held,
        draws or CountingDraws(),
        SamplerSettings(sampler=name, **settings),
    )
    return accepted[0].tolist(), tokens[0].tolist()


ROWS = [[0.98, 0.01, 0.01], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]


def test_argmax_accepts_where_the_reference_does_and_draws_no_candidates():
    draws = CountingDraws()
    for bound in (0.01, 0.2, 5.0):
        want, _ = accept("entropy-bound", ROWS, entropy_bound=bound)
        accepted, tokens = accept("argmax", ROWS, draws=draws, entropy_bound=bound)
        assert accepted == want
        assert tokens == [0, 1, 2]
    assert draws.counts["candidates"] == 0


def test_confidence_accepts_by_probability():
    assert accept("confidence", ROWS, accept_probability=0.7) == ([True, True, False], [0, 1, 2])
    assert accept("confidence", ROWS, accept_probability=0.9)[0] == [True, False, False]
    assert accept("confidence", ROWS[::-1], accept_probability=1.0)[0] == [False, False, True]


def test_confidence_keeps_an_accepted_token_down_to_the_lower_probability():
    given = {"accept_probability": 0.9, "keep_probability": 0.3}
    kept = accept("confidence", ROWS, canvas=[0, 1, 0], before=[1, 1, 1], **given)
    assert kept == ([True, True, True], [0, 1, 0])
    low = accept("confidence", ROWS, canvas=[0, 0, 0], before=[1, 1, 1], **given)
    assert low[0] == [True, False, True]
    noise = accept("confidence", ROWS, canvas=[0, 1, 0], before=[1, 0, 0], **given)
    assert noise[0] == [True, False, False]


def test_confidence_checks_again_and_replaces_a_token_that_it_has_accepted():
    accepted, tokens = accept(
        "confidence", ROWS, canvas=[2, 1, 0], before=[1, 1, 1], keep_probability=0.0
    )
    assert (accepted, tokens[0]) == ([True, True, True], 0)


def test_the_loop_uses_the_sampler_that_is_asked_for():
    counts = {}
    for name in SAMPLERS:
        draws = CountingDraws()
        settings = SamplerSettings(sampler=name, max_denoising_steps=3)
        flat = mx.zeros((1, L, V))
        steps = list(
            denoise(lambda *_: flat, draws, settings, canvas_length=L, vocab_size=V)  # noqa: B023
        )
        counts[name] = (draws.counts["candidates"], draws.counts["renoise"], len(steps))
    assert counts == {"entropy-bound": (3, 3, 3), "argmax": (0, 3, 3), "confidence": (0, 3, 3)}
