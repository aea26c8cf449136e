"""What a constraint costs is counted beside the loops, and said."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import GenerationOptions, load
from mlx_diffusiongemma.cli.render import stats_rows
from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.constraints.progress import follow
from mlx_diffusiongemma.constraints.stopwatch import ConstraintCost, Stopwatch
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary

TOKENS = [None, *(bytes([letter]) for letter in b"abc01")]
VOCABULARY = Vocabulary.of(TOKENS, end_ids=frozenset({0}))


def ticking():
    """A watch on whose clock a second passes between two looks."""
    seconds = iter(range(1000))
    return Stopwatch(lambda: float(next(seconds)))


def test_a_watch_counts_once_inside_of_itself_and_goes_on_after_an_error():
    watch = ticking()
    with watch, watch:
        pass
    assert watch.seconds == 1.0
    with pytest.raises(ValueError), watch:
        raise ValueError
    with watch:
        pass
    assert watch.seconds == 3.0


def test_every_kind_of_work_at_a_canvas_is_counted_and_preparation_apart():
    cost = ConstraintCost(ticking(), ticking())
    text = follow(CanvasConstraint.regex("[ab]+c?"), VOCABULARY, 4, cost)
    assert (cost.preparing.seconds, cost.working.seconds) == (1.0, 0.0)
    rules = text.rules(4)
    logits = mx.random.normal((1, 4, len(TOKENS)), key=mx.random.key(1))
    kept = mx.array([[2, 2, 2, 2]]), mx.array([[True] * 4])
    masked = rules.masked(logits)
    reading = rules.read(masked)
    work = [
        lambda: rules.masked(logits),
        lambda: rules.read(masked),
        lambda: rules.noise(mx.zeros((1, 4), mx.int32)),
        lambda: reading.noise(mx.zeros((1, 4), mx.int32)),
        lambda: reading.joined(*kept),
        lambda: text.commit([1]),
        lambda: text.rules(4),
    ]
    assert np.array(reading.joined(*kept)).tolist() != np.array(reading.best).tolist()
    for one in work:
        before = cost.working.seconds
        one()
        assert cost.working.seconds > before
    assert cost.preparing.seconds == 1.0


def test_a_result_says_what_its_constraint_took_alone_and_in_a_batch():
    runtime = load("demo")
    constraint = CanvasConstraint.regex("[a-f]{30,60}")
    options = [
        GenerationOptions(seed=1, max_tokens=64, max_denoising_steps=4, constraint=constraint),
        GenerationOptions(seed=1, max_tokens=64, max_denoising_steps=4),
    ]
    results = [
        runtime.generate("2 + 2 =", options[0]),
        *runtime.generate_batch(["2 + 2 =", "2 + 3 ="], options),
    ]
    for result in results[:2]:
        stats = result.stats
        assert 0 < stats.constraint_seconds < stats.denoising_seconds
        assert stats.constraint_preparation_seconds > 0
        shown = dict(stats_rows(result))["constraint"]
        per_step = 1000 * stats.constraint_seconds / sum(stats.denoising_steps)
        assert shown.startswith(f"{stats.constraint_seconds:.2f} s ({per_step:.1f} ms a step)")
        assert stats.to_dict()["constraint_seconds"] == stats.constraint_seconds
    assert results[2].stats.constraint_seconds is None
    assert "constraint" not in dict(stats_rows(results[2]))
