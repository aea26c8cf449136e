"""For each kernel a launch in which every mutant of `kernel_mutants` must show."""

from dataclasses import replace

import expert_arguments
import head_arguments
import mlx.core as mx
import numpy as np
import residual_arguments

from mlx_diffusiongemma.kernels import (
    Belief,
    Logits,
    activation,
    certainty,
    conditioning,
    drawing,
    expert_products,
    heads,
    renewal,
    residual,
    routing,
    sparse,
)
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch


def routing_scores() -> mx.array:
    """Rows that need every condition: ties, broken ones, a buffer's end; 3 for each simdgroup."""
    scores = np.random.default_rng(1).normal(size=(70, 40)).astype(np.float32)
    scores[1] = 0
    scores[2, 20] = np.nan
    scores[3] = np.nan
    scores[4] = -np.inf
    scores[5, 20] = np.inf
    scores[6:40, 7] = 9  # the same expert in neighbouring rows, in other lanes
    scores[6:40:2, 8] = 10
    return mx.array(scores)


def logits() -> mx.array:
    """Rows with ties in one thread and across threads, forbidden tokens, and broken ones."""
    rows = np.random.default_rng(3).normal(size=(6, 2100)).astype(np.float32)
    rows[0, [70, 70 + 288, 1500]] = 9  # 288 threads
    rows[1, 3:2000] = -np.inf
    rows[2] = -np.inf
    rows[3, 5] = np.nan
    rows[4] = np.nan
    return mx.array(rows)


def entropies() -> mx.array:
    """Two canvases that fill no simdgroup, with ties and NaN; only the first few are accepted."""
    rows = np.random.default_rng(4).gamma(1.0, size=(2, 70)).astype(np.float32)
    rows[0, ::3] = 0.5
    rows[1, [3, 60]] = np.nan
    return mx.array(rows)


def drawn() -> Launch:
    """Rows that need every block, group and lane; some forbidden tokens; one with no numbers."""
    rows = np.random.default_rng(6).normal(size=(12, 9000)).astype(np.float32)
    rows[1] = np.nan
    rows[2, 3:] = -np.inf
    rows[3:6, ::2] = -np.inf
    rows[6:, 8000:] += 3
    key = mx.random.key(11)
    # The last row's sum comes to its number with the first token. The next thread's are too small
    # to move it one by one, but not together; those after them have no probability.
    number = np.array(mx.random.uniform(shape=(12,), key=key))[-1]
    rows[-1] = -np.inf
    rows[-1, 0] = np.nextafter(np.log(number), -np.inf, dtype=np.float32)
    rows[-1, 8:16] = np.log(number * 2**-24 * 0.45)
    rows[-1, 8999] = np.log(1 - number)
    logits = Logits(mx.array(rows))
    statistics = certainty.reference.logit_statistics(logits)
    at = mx.arange(12)
    exact = mx.where(at == 11, 0.0, statistics.normaliser)
    short = mx.where(at == 5, exact + 9, exact)  # row 5: probabilities that sum to 1e-4
    launch = drawing.draw_launch(logits, statistics._replace(normaliser=short), key)
    fewer = {"template": (("THREADS", 288),), "threadgroup": (288, 1, 1), "grid": (12 * 288, 1, 1)}
    return replace(launch, **fewer)


def renewed() -> Launch:
    """Canvases longer than the threads, with every kind of entropy."""
    rng = np.random.default_rng(7)
    tokens = [mx.array(rng.integers(0, 3, (2, 300)), mx.int32) for _ in range(4)]
    entropy = rng.gamma(1.0, size=(2, 300)).astype(np.float32)
    entropy[1, 270:] = np.inf
    entropy[1, 280:] = np.nan
    statistics = certainty.reference.LogitStatistics(mx.array(entropy), entropy, tokens[2])
    return renewal.renew_launch(
        tokens[0] > 0, tokens[0], tokens[1], statistics, tokens[1] > 0, tokens[3]
    )


def conditioned(kernel: Kernel) -> Launch:
    """Rows that fill two simdgroups, the last of five shares not full; with one input of two."""
    rng = np.random.default_rng(8)
    one, other = (mx.array(rng.normal(size=(3, 264)), mx.float32) for _ in range(2))
    weight, scale = mx.array(rng.uniform(0.5, 2, 264), mx.float32), mx.array(5.5)
    if kernel is conditioning.CONDITION:
        spare = other[:0]  # nothing may read it
        launch = conditioning.condition_launch(one, None, scale, weight, 1e-6)
        return replace(launch, inputs=(launch.inputs[0], spare, *launch.inputs[2:]))
    launch = conditioning.soft_norm_launch((one,), scale, weight, 1e-6)
    return replace(launch, inputs=(launch.inputs[0], other, *launch.inputs[2:]))


def believed() -> Launch:
    """A range in the middle of rows without a softcap."""
    rows = mx.array(np.random.default_rng(9).normal(size=(3, 70)), mx.float32)
    belief = Belief(Logits(rows, temperature=0.7), mx.array([1.0, 2.0, 3.0]))
    return conditioning.probabilities_launch(belief, 30, 33, mx.float32)


def survived() -> Launch:
    """Three blocks of 288 threads with survivors in each: of one row more than there is room for,
    of one on the border; a row without a softcap's numbers, and rows of none."""
    rows = np.random.default_rng(10).normal(size=(5, 5001)).astype(np.float32) * 3
    rows[1] = np.where(np.arange(5001) % 3, -40.0, 0.0)
    rows[1, [5, 2500, 5000]] = [9.0, -1.0, -1.0]
    rows[2] = -np.inf
    rows[3, 5] = np.inf
    rows[4] *= 0.1
    logits = Logits(mx.array(rows))
    statistics = certainty.reference.logit_statistics(logits)
    norms = mx.array(np.random.default_rng(11).uniform(1, 2, 5001), mx.float32)
    launch = sparse.survivors_launch(logits, statistics, norms)
    fewer = {"template": (("THREADS", 288), ("K", 2048)), "threadgroup": (288, 1, 1)}
    return replace(launch, **fewer, grid=(5 * 288, 1, 1))


def summed(kernel: Kernel) -> Launch:
    """Words that fill no simdgroup, rows with fewer survivors than are there to read."""
    rng = np.random.default_rng(12)
    tokens = mx.array(rng.integers(0, 9, (3, 6)), mx.int32)
    probabilities = mx.array(rng.uniform(size=(3, 6)), mx.float32)
    picked = sparse.Survivors(tokens, probabilities, mx.array([0, 6, 2]), mx.zeros((3,)))
    weight = mx.array(rng.normal(size=(9, 192)), mx.float32)
    table = sparse.Table(weight[:, :189])
    if kernel is sparse.SUM_PACKED:
        table = sparse.Table(*mx.quantize(weight, 64, 8), 64, 8, "affine")
    return sparse.sum_launch(picked, table, mx.float32)


def multiplied(kernel: Kernel) -> Launch:
    """More experts than lanes, two tiles of one, the last not full; columns that fill no block.

    Inputs of three groups, of which `fragments` gets two at a time.
    """
    counts = [0] * 7 + [2] + [0] * 25 + [17, 0, 3]
    x, routing = expert_arguments.rows(22, 96), expert_arguments.routing(counts)
    packed = expert_arguments.packed(36, 84, 96, 4)
    for way in expert_products.WAYS:
        for kernels, launch in (
            (expert_products.GATED, expert_products.gated_launch),
            (expert_products.DOWN, expert_products.down_launch),
        ):
            if kernel is kernels[way]:
                given = launch(way, x, routing, packed)
                fewer = dict(given.template) | ({"INPUTS": 64} if way == "fragments" else {})
                grid = given.grid[0], 5, 1  # four tiles, and one that there is not
                return replace(given, template=tuple(fewer.items()), grid=grid)
    raise KeyError(kernel.name)


def launch_of(kernel: Kernel) -> Launch:
    """A launch in which every mutant must show."""
    if kernel in (*expert_products.GATED.values(), *expert_products.DOWN.values()):
        return multiplied(kernel)
    scores, scale = routing_scores(), mx.arange(1, 41).astype(mx.float32)
    some = np.random.default_rng(2).permuted(np.tile(np.arange(40), (70, 1)), axis=1)[:, :4]
    rows, width = 3, 264  # two simdgroups; the last of five shares is not full
    launches = {
        routing.ROUTE: routing.route_launch(scores, scale, 4),
        routing.CHOOSE: routing.choose_launch(scores, scale, 4),
        routing.SORT: routing.sort_launch(mx.array(some).astype(mx.uint32), 40),
        activation.GEGLU: activation.geglu_halves_launch(scores),
        certainty.LOGIT_STATISTICS: certainty.logit_statistics_launch(Logits(logits())),
        certainty.ACCEPT: certainty.accept_launch(entropies(), 3.0),
        drawing.DRAW: drawn(),
        drawing.NOISE: drawing.noise_launch((1, 301), 1000, mx.random.key(5)),
        renewal.RENEW: renewed(),
        conditioning.PROBABILITIES: believed(),
        conditioning.SOFT_NORM: conditioned(conditioning.SOFT_NORM),
        conditioning.CONDITION: conditioned(conditioning.CONDITION),
        sparse.SURVIVORS: survived(),
        sparse.SUM: summed(sparse.SUM),
        sparse.SUM_PACKED: summed(sparse.SUM_PACKED),
        heads.PREPARE_HEADS: heads.prepare_heads_launch(
            *head_arguments.arguments(2, 3, 4, 2, 80, mx.float32)
        ),
        residual.ADD_ATTENTION: residual.add_attention_launch(
            *residual_arguments.attention(rows, width, mx.float32)
        ),
        residual.GATHER_NORMED: residual.gather_normed_launch(
            *residual_arguments.gathered(rows, 40, mx.float32)
        ),
        residual.ADD_FEED_FORWARD: residual.add_feed_forward_launch(
            *residual_arguments.feed_forward(rows, width, mx.float32)
        ),
    }
    return launches[kernel]
