"""Every operation of `kernels` with arguments of the released sizes, and none that is a near tie.

    CASES[name](dtype) --> calls, with arguments in dtype --> computed(calls) --> arrays

Made from numpy, so that two devices get the same numbers.
"""

from collections.abc import Callable
from typing import Any

import head_arguments
import mlx.core as mx
import numpy as np
import residual_arguments

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Belief, Logits, LogitStatistics, Survivors, Table

Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]
HIDDEN, EXPERT_WIDTH, EXPERTS, TOP_K, VOCABULARY = 2816, 704, 128, 8, 262_144


def _normal(shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 0, spread: float = 1.0) -> Any:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32) * spread
    return mx.array(values).astype(dtype)


def geglu(dtype: mx.Dtype) -> Calls:
    gate, up = _normal((33, EXPERT_WIDTH), dtype, 0, 2.0), _normal((33, EXPERT_WIDTH), dtype, 1)
    return [(kernels.geglu, (gate, up))]


def geglu_halves(dtype: mx.Dtype) -> Calls:
    return [(kernels.geglu_halves, (_normal((33, 2 * EXPERT_WIDTH), dtype, 0, 2.0),))]


def linear(dtype: mx.Dtype) -> Calls:
    """33 rows, and one: another product on a GPU."""
    weight, x = _normal((300, HIDDEN), dtype, 1, HIDDEN**-0.5), _normal((33, HIDDEN), dtype)
    return [(kernels.linear, (x, weight)), (kernels.linear, (x[:1], weight))]


def expectation(dtype: mx.Dtype) -> Calls:
    probs = np.random.default_rng(0).dirichlet(np.full(3000, 0.1), size=5)
    given = mx.array(probs, mx.float32).astype(dtype)
    return [(kernels.expectation, (given, _normal((3000, 64), dtype, 1)))]


def prepare_heads(dtype: mx.Dtype) -> Calls:
    """A sliding layer's heads, and a full layer's, which take their values from the keys."""
    sliding = head_arguments.arguments(2, 33, 16, 8, 256, dtype)
    full = head_arguments.arguments(1, 33, 16, 2, 512, dtype, shared=True)
    return [(kernels.prepare_heads, sliding), (kernels.prepare_heads, full)]


def add_attention(dtype: mx.Dtype) -> Calls:
    return [(kernels.add_attention, residual_arguments.attention(33, HIDDEN, dtype))]


def add_feed_forward(dtype: mx.Dtype) -> Calls:
    arguments = residual_arguments.feed_forward(33, HIDDEN, dtype, TOP_K)
    return [(kernels.add_feed_forward, arguments)]


def gather_normed(dtype: mx.Dtype) -> Calls:
    return [(kernels.gather_normed, residual_arguments.gathered(33, HIDDEN, dtype, TOP_K))]


def route(dtype: mx.Dtype) -> Calls:
    """A canvas, and a prompt of more tokens than one launch takes.

    The scores of a token are sixteenths, which every dtype holds, all of them different.
    """
    rng = np.random.default_rng(0)
    scores = rng.permuted(np.tile(np.arange(EXPERTS) / 16, (600, 1)), axis=-1)
    scale = mx.array(rng.uniform(0.5, 2.0, EXPERTS), mx.float32).astype(dtype)
    given = mx.array(scores, mx.float32).astype(dtype)
    return [(kernels.route, (given[:256], scale, TOP_K)), (kernels.route, (given, scale, TOP_K))]


def _with_experts(x: mx.array, outputs: int, bits: int) -> tuple[Any, ...]:
    """`x`, where its rows go, and 16 packed experts.

    On a CPU all of it in float32, as the package computes there: MLX's product sums in the dtype.
    """
    rng = np.random.default_rng(0)
    scores = rng.permuted(np.tile(np.arange(16) / 16, (40, 1)), axis=-1)
    routing = kernels.route(mx.array(scores, mx.float32), mx.ones((16,)), 2)
    weight = _normal((16, outputs, x.shape[-1]), x.dtype, 1, x.shape[-1] ** -0.5)
    packed = kernels.PackedExperts(*mx.quantize(weight, 64, bits), 64, bits, "affine")
    given = x, routing, packed
    return _widened(given) if mx.default_device().type == mx.DeviceType.cpu else given


def gated_products(dtype: mx.Dtype) -> Calls:
    x = _normal((40, HIDDEN), dtype)
    return [(kernels.gated_products, _with_experts(x, 96, bits)) for bits in (4, 8)]


def down_products(dtype: mx.Dtype) -> Calls:
    hidden = _normal((80, EXPERT_WIDTH), dtype)
    return [(kernels.down_products, _with_experts(hidden, 300, bits)) for bits in (4, 8)]


def logit_statistics(dtype: mx.Dtype) -> Calls:
    """A flat row, a sharp one, one with forbidden tokens, and one with a tie for the best."""
    logits = np.random.default_rng(0).normal(size=(4, VOCABULARY)).astype(np.float32)
    logits *= np.array([[0.1], [3.0], [2.0], [1.0]], np.float32)
    logits[1, 777] = 40.0
    logits[2, ::2] = -np.inf
    logits[3, [5, 9]] = 20.0
    logits[0, 4321] = logits[2, 4321] = 21.0
    given = mx.array(logits).astype(dtype)
    return [
        (kernels.logit_statistics, (Logits(given),)),
        (kernels.logit_statistics, (Logits(given[:2], cap=30.0, temperature=0.7),)),
    ]


def prepared(dtype: mx.Dtype) -> Calls:
    logits = Logits(_normal((3, 4000), dtype, 0, 3.0), cap=30.0, temperature=0.7)
    return [(lambda given: kernels.prepared(given).values(), (logits,))]


def draw_tokens(dtype: mx.Dtype) -> Calls:
    """Rows that leave no doubt: a sum of floats in another order must not decide."""
    logits = np.full((4, VOCABULARY), -60.0, np.float32)
    logits[np.arange(4), [0, 777, 131_072, VOCABULARY - 1]] = 0.0
    sure = Logits(mx.array(logits).astype(dtype))
    zero, best = mx.zeros((4,)), mx.array([0, 777, 131_072, VOCABULARY - 1], mx.int32)
    return [(kernels.draw_tokens, (sure, LogitStatistics(zero, zero, best), mx.random.key(1)))]


def noise_tokens(dtype: mx.Dtype) -> Calls:
    return [(kernels.noise_tokens, ((3, n), VOCABULARY, mx.random.key(n))) for n in (1, 85, 256)]


def renew(dtype: mx.Dtype) -> Calls:
    """Entropies of eighths: their sums are exact in any order."""
    rng = np.random.default_rng(0)
    numbers = [mx.array(rng.integers(0, 4, (2, 256)), mx.int32) for _ in range(5)]
    entropy = numbers[0].astype(mx.float32) / 8
    statistics = LogitStatistics(entropy, entropy, numbers[1])
    masks = numbers[2] > 1, numbers[3] > 1
    return [(kernels.renew, (masks[0], *numbers[3:5], statistics, masks[1], numbers[0]))]


def probabilities(dtype: mx.Dtype) -> Calls:
    """Of a range in the middle, and of a row's beginning."""
    logits = Logits(_normal((3, 4000), dtype, 0, 3.0), cap=30.0, temperature=0.7)
    believed = Belief(logits, mx.array([5.0, 6.0, 7.0]))
    return [(kernels.probabilities, (believed, first, 1000, mx.float32)) for first in (1500, 0)]


def survivors(dtype: mx.Dtype) -> Calls:
    """Of quarters, whose border lies between two of them; in the second row more than there is
    room for."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(-60, 8, (2, VOCABULARY)) * 0.25 + 0.125
    numbers[0] = np.where(rng.uniform(size=VOCABULARY) < 0.01, numbers[0], -14.875)
    numbers[:, 77] = 2.0
    logits = Logits(mx.array(numbers, mx.float32).astype(dtype))
    statistics = kernels.logit_statistics(logits)
    return [(kernels.survivors, (logits, statistics, mx.array(rng.uniform(1, 2, VOCABULARY))))]


def sum_survivors(dtype: mx.Dtype) -> Calls:
    rng = np.random.default_rng(0)
    picked = Survivors(
        mx.array(rng.integers(0, 500, (3, 64)), mx.int32),
        mx.array(rng.dirichlet(np.ones(64), 3), mx.float32),
        mx.array([64, 64, 64], mx.int32),
        mx.zeros((3,)),
    )
    weight = _normal((500, HIDDEN), dtype, 1)
    tables = [Table(weight)]
    for bits in (4, 8):
        packed = mx.quantize(weight, 64, bits, stream=mx.cpu)
        tables.append(Table(*packed, 64, bits, "affine"))
    return [(kernels.sum_survivors, (picked, table, mx.float32)) for table in tables]


def soft_norm(dtype: mx.Dtype) -> Calls:
    parts = _normal((33, HIDDEN), dtype, 0), _normal((33, HIDDEN), dtype, 1)
    weight, scale = _normal((HIDDEN,), dtype, 2), mx.array(53.0, dtype)
    return [(kernels.soft_norm, (given, scale, weight, 1e-6)) for given in (parts, parts[:1])]


def condition(dtype: mx.Dtype) -> Calls:
    embedded, signal = _normal((33, HIDDEN), dtype, 0), _normal((33, HIDDEN), dtype, 1)
    norm, scale = _normal((HIDDEN,), dtype, 2), mx.array(53.0, dtype)
    return [(kernels.condition, (embedded, one, scale, norm, 1e-6)) for one in (signal, None)]


def accept_within_bound(dtype: mx.Dtype) -> Calls:
    """Entropies of eighths, many of them equal: their sums are exact in any order."""
    entropy = mx.array(np.random.default_rng(0).integers(0, 8, (3, 256)) / 8, mx.float32)
    return [(kernels.accept_within_bound, (entropy, bound)) for bound in (3.0, 0.0)]


CASES: dict[str, Callable[[mx.Dtype], Calls]] = {
    case.__name__: case
    for case in (
        *(geglu, geglu_halves, linear, expectation, prepare_heads),
        *(add_attention, add_feed_forward, route, logit_statistics, accept_within_bound),
        *(gated_products, down_products, gather_normed, prepared),
        *(draw_tokens, noise_tokens, renew, probabilities, soft_norm, condition),
        *(survivors, sum_survivors),
    )
}

# The others launch MLX's products, or what was chosen for them, or nothing.
WITH_KERNELS = [
    name
    for name in CASES
    if name not in ("linear", "expectation", "gated_products", "down_products", "prepared")
]


def computed(calls: Calls, *, wide: bool = False) -> tuple[mx.array, ...]:
    """All results, one after another; `wide` gives the same numbers as float32."""
    arrays: list[mx.array] = []
    for operation, arguments in calls:
        result = operation(*_widened(arguments) if wide else arguments)
        arrays += [result] if isinstance(result, mx.array) else list(result)
    return tuple(arrays)


def _widened(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_widened(part) for part in value]
        return type(value)(*parts) if type(value) is not tuple else tuple(parts)
    is_float = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
    return value.astype(mx.float32) if is_float else value
