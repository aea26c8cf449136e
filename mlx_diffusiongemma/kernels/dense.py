"""Dense products. On a GPU they are MLX's own; on the CPU back-end they are cut to fit its BLAS.

The BLAS in MLX's CPU wheels is the unblocked reference one: it runs A @ B up to twice as fast as
A @ B.T, and slows down when B outgrows the cache. Measured in docs/log.md.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch

_ROWS_OF_WEIGHT = 128  # of `linear`: one piece is transposed and used while it is in the cache
_TERMS = 1024  # of `expectation`: rows of the table summed at a time
_FEW = 4  # with so few rows the copies cost more than they save


def linear(x: mx.array, weight: mx.array) -> mx.array:
    """x @ weight.T for float [..., D] and [O, D] -> [..., O]."""
    rows = x.size // x.shape[-1]
    if rows <= _FEW or not dispatch.on_cpu():
        return x @ weight.T
    pieces = mx.split(weight, range(_ROWS_OF_WEIGHT, weight.shape[0], _ROWS_OF_WEIGHT))
    return mx.concatenate([x @ mx.contiguous(piece.T) for piece in pieces], axis=-1)


def expectation(probs: mx.array, table: mx.array) -> mx.array:
    """probs @ table for float [..., V] and [V, D] -> [..., D]: the mean row under `probs`."""
    if not dispatch.on_cpu():
        return probs @ table
    size = table.shape[0]
    total = probs[..., :_TERMS] @ table[:_TERMS]
    for start in range(_TERMS, size, _TERMS):
        total = total + probs[..., start : start + _TERMS] @ table[start : start + _TERMS]
    return total
