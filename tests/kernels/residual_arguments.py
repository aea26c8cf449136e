"""Random arguments of the operations on the residual stream."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.kernels.reference import (
    AttentionWeights,
    FeedForwardWeights,
    Routing,
    RowNorm,
)

EPS = 1e-6


def attention(rows: int, width: int, dtype: mx.Dtype, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    arrays = [mx.array(rng.normal(size=(rows, width)) * 3, mx.float32) for _ in range(2)]
    weights = [mx.array(rng.uniform(0.5, 2, width), mx.float32) for _ in range(3)]
    cast = [array.astype(dtype) for array in (*arrays, *weights)]
    return cast[0], cast[1], AttentionWeights(*cast[2:]), EPS


def feed_forward(
    rows: int, width: int, dtype: mx.Dtype, top_k: int = 3, seed: int = 0
) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    arrays = [mx.array(rng.normal(size=(rows, width)) * 3, mx.float32) for _ in range(2)]
    outputs = mx.array(rng.normal(size=(rows * top_k, width)), mx.float32)
    weights = [mx.array(rng.uniform(0.5, 2, width), mx.float32) for _ in range(4)]
    cast = [array.astype(dtype) for array in (*arrays, outputs, *weights, mx.array([0.75]))]
    slots = mx.array(rng.permutation(rows * top_k).reshape(rows, top_k)).astype(mx.uint32)
    shares = mx.array(rng.dirichlet(np.ones(top_k), size=rows) * 1.5, mx.float32)
    nothing = mx.zeros((0,), mx.uint32)
    routing = Routing(nothing, shares, nothing, nothing, slots, nothing)
    return (*cast[:3], routing, FeedForwardWeights(*cast[3:]), EPS)


def gathered(rows: int, width: int, dtype: mx.Dtype, top_k: int = 3, seed: int = 0) -> tuple:
    """Of `gather_normed`: every row `top_k` times, in no order."""
    rng = np.random.default_rng(seed)
    x = mx.array(rng.normal(size=(rows, width)) * 3, mx.float32).astype(dtype)
    weight = mx.array(rng.uniform(0.5, 2, width), mx.float32).astype(dtype)
    inverse_rms = mx.array(rng.uniform(0.2, 1, rows), mx.float32)
    tokens = rng.permutation(np.repeat(np.arange(rows), top_k)).astype(np.uint32)
    return x, RowNorm(inverse_rms, weight), mx.array(tokens)
