"""Stop rules: each against a history written out by hand, and in the loop."""

import mlx.core as mx
import pytest
from scripted import certain_of

from mlx_diffusiongemma.denoising import denoise
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.stopping import BEGINNING, STOP_RULES, Shown, standing_of

V, L = 11, 6


def shown(argmax=(1, 1), accepted=(1, 1), entropy=0.0):
    return Shown(
        mx.array([argmax]), mx.array([accepted]).astype(mx.bool_), mx.full((1, 2), entropy)
    )


def stops(rule, *steps, **settings):
    """Whether the last of these steps is one to stop at."""
    numbers = {"confidence_threshold": 0.05} | settings
    standing = BEGINNING
    for before, now in zip([steps[0], *steps], steps, strict=False):
        standing = standing.after(
            now.entropy[0, 0].item(),
            not mx.array_equal(now.argmax_canvas, before.argmax_canvas),
            not mx.array_equal(now.accepted, before.accepted),
        )
    assert standing == standing_of(steps)
    return STOP_RULES[rule](standing, SamplerSettings(stop_rule=rule, **numbers))


SURE, UNSURE = shown(entropy=0.04), shown(entropy=0.06)


@pytest.mark.parametrize("rule", STOP_RULES)
def test_no_rule_stops_while_the_model_is_unsure(rule):
    assert stops(rule, SURE, SURE)
    assert not stops(rule, SURE, UNSURE)


def test_only_the_entropy_rule_stops_at_the_first_sure_step():
    assert [rule for rule in STOP_RULES if stops(rule, SURE)] == ["entropy"]


def test_the_reference_rule_looks_at_the_argmax_and_plateau_at_the_accepted_positions():
    changed_token, changed_mask = shown(argmax=(1, 2)), shown(accepted=(1, 0))
    assert not stops("stable-and-confident", changed_token, SURE)
    assert stops("stable-and-confident", changed_mask, SURE)
    assert stops("plateau", changed_token, SURE)
    assert not stops("plateau", changed_mask, SURE)
    assert stops("entropy", changed_token, SURE)


@pytest.mark.parametrize("rule", ["stable-and-confident", "plateau"])
def test_the_stability_threshold_counts_the_steps_before(rule):
    other = shown(argmax=(3, 3), accepted=(0, 0))
    assert not stops(rule, SURE, SURE, stability_threshold=2)
    assert not stops(rule, other, SURE, SURE, stability_threshold=2)
    assert stops(rule, other, SURE, SURE, SURE, stability_threshold=2)


def passes(predict=lambda canvas, previous: certain_of([4] * L, V), **settings):
    steps = SamplerSettings(max_denoising_steps=9, **settings)
    return len(list(denoise(predict, SeededDraws(3), steps, canvas_length=L, vocab_size=V)))


def test_the_loop_stops_by_the_rule_that_is_asked_for():
    assert passes() == 2
    assert passes(stop_rule="entropy") == 1
    assert passes(stop_rule="plateau") == 2
    assert passes(stop_rule="plateau", stability_threshold=4) == 5
    tokens = iter(range(9))
    restless = passes(lambda canvas, previous: certain_of([next(tokens)] * L, V))
    assert restless == 9


def test_no_rule_saves_the_first_steps():
    for rule in STOP_RULES:
        assert passes(stop_rule=rule, min_denoising_steps=5) == 5
    assert passes(min_denoising_steps=99) == 9
