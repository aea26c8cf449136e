"""Sparse self-conditioning: from the likeliest tokens, from all where those do not suffice.

logits --> survivors --> their sum --> Digest --> settled --> soft_embedding, at the next step
"""

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import Digest, Logits, LogitStatistics, Table

_TOKENS_AT_A_TIME = 8192


class Digester:
    """Makes the digests of one model's steps; see `kernels.reference_sparse`."""

    def __init__(self, table: Table, norms: mx.array, dtype: mx.Dtype):
        self._table = table
        self._norms = norms
        self._dtype = dtype

    def __call__(self, logits: Logits, statistics: LogitStatistics) -> Digest:
        """The digest of logits [B, L, V] and what they say; left lazy."""
        picked = kernels.survivors(logits, statistics, self._norms)
        soft, squares = kernels.sum_survivors(picked, self._table, self._dtype)
        return Digest(soft, squares, picked.error)


def table_of(embedding: nn.Module) -> Table:
    """The numbers of `layers.Embedding`, or `nn.QuantizedEmbedding` in any mode."""
    if isinstance(embedding, nn.QuantizedEmbedding):
        packed = embedding.weight, embedding.scales, embedding.biases
        return Table(*packed, embedding.group_size, embedding.bits, embedding.mode)
    return Table(embedding.weight)


def norms_of(table: Table) -> mx.array:
    """float32 [V], the length of every token's embedding; computed here, with little room."""
    count = table.weight.shape[0]
    norms = []
    for first in range(0, count, _TOKENS_AT_A_TIME):
        rows = table.rows(mx.arange(first, min(first + _TOKENS_AT_A_TIME, count)))
        norms.append(mx.sqrt(mx.sum(rows * rows, axis=-1)))
        mx.eval(norms[-1])
    joined = mx.concatenate(norms)
    mx.eval(joined)
    return joined
