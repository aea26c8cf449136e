"""Random arguments of the operation that prepares heads."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.kernels.reference import HeadWeights

EPS = 1e-6


def arguments(
    batch: int,
    rows: int,
    heads: int,
    kv_heads: int,
    width: int,
    dtype: mx.Dtype,
    *,
    shared: bool = False,
    offset: int = 19,
) -> tuple[Any, ...]:
    rng = np.random.default_rng(width)
    counts = heads, kv_heads, kv_heads
    drawn = [
        mx.array(rng.normal(size=(batch, rows, count * width)) * 2, mx.float32).astype(dtype)
        for count in counts
    ]
    norms = [mx.array(rng.uniform(0.5, 2, width), mx.float32).astype(dtype) for _ in range(2)]
    frequencies = 10_000.0 ** (np.arange(width // 2) / (width // 2))
    frequencies[width // 4 :] = np.inf  # some keep still, as in the full layers
    weights = HeadWeights(*norms, mx.array(frequencies, mx.float32))
    return drawn[0], drawn[1], None if shared else drawn[2], weights, offset, EPS
