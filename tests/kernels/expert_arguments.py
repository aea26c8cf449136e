"""Rows, routings and packed experts for the products with experts."""

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.kernels import PackedExperts, Routing

# Experts without rows, with one, around a tile of 16, and with more than two.
AWKWARD = (3, 0, 1, 15, 16, 17, 33, 0)


def routing(counts) -> Routing:
    """Every token goes to one expert, and expert e gets counts[e] tokens, in no order."""
    pairs = sum(counts)
    inverse = np.random.default_rng(1).permutation(pairs)
    experts = np.repeat(np.arange(len(counts)), counts).astype(np.uint32)
    return Routing(
        mx.array(experts[inverse])[:, None],
        mx.ones((pairs, 1)),
        mx.array(np.argsort(inverse).astype(np.uint32)),
        mx.array(experts),
        mx.array(inverse.astype(np.uint32))[:, None],
        mx.array(np.r_[0, np.cumsum(counts)].astype(np.uint32)),
    )


def rows(count: int, width: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    drawn = np.random.default_rng(2).normal(size=(count, width))
    return mx.array(drawn, mx.float32).astype(dtype)


def packed(
    experts: int, outputs: int, inputs: int, bits: int, group: int = 32, dtype=mx.float32
) -> PackedExperts:
    drawn = np.random.default_rng(3).normal(size=(experts, outputs, inputs)) * inputs**-0.5
    parts = mx.quantize(mx.array(drawn, mx.float32).astype(dtype), group, bits)
    return PackedExperts(*parts, group, bits, "affine")


def whole_numbers(
    experts: int, outputs: int, inputs: int, bits: int, first: int
) -> tuple[np.ndarray, PackedExperts]:
    """Weights `first`, `first` + 1, ...: int64 [E, N, K], and the same packed."""
    stored = np.random.default_rng(4).integers(0, 1 << bits, (experts, outputs, inputs))
    per_word = 32 // bits
    words = stored.reshape(experts, outputs, -1, per_word) << (bits * np.arange(per_word))
    weight = mx.array(words.sum(axis=-1).astype(np.uint32))
    groups = mx.ones((experts, outputs, inputs // 32))
    return stored + first, PackedExperts(weight, groups, first * groups, 32, bits, "affine")


def widened(experts: PackedExperts) -> PackedExperts:
    """The same numbers in float32."""
    assert experts.biases is not None
    return experts._replace(
        scales=experts.scales.astype(mx.float32), biases=experts.biases.astype(mx.float32)
    )
