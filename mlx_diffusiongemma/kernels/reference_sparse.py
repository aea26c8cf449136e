"""Self-conditioning from the likeliest tokens alone, in plain MLX: the definition.

    logits --> survivors --> sum_survivors --> soft embedding, and how far it can be off

The soft embedding is the sum of probability * embedding over all tokens. Tokens far below the best
one are left out, and nothing is renormalised: so what is missing is no longer than the sum of
probability * length of embedding over them, which `survivors` adds up beside. That is the
certificate. Letters: V vocabulary, K most survivors, D hidden.
"""

from typing import NamedTuple

import mlx.core as mx

from mlx_diffusiongemma.kernels.reference_sampler import Logits, LogitStatistics

MOST_SURVIVORS = 2048
DEPTH = 10.0  # of scaled logits: a survivor has at least exp(-10) of the best one's probability
_SLACK = 1.001  # more than the rounding of a sum of positive numbers
_NUMBERS_AT_A_TIME = 4_194_304


class Table(NamedTuple):
    """An embedding: numbers [V, D], or packed as `mx.quantize` does."""

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group_size: int = 0
    bits: int = 0
    mode: str = ""

    @property
    def width(self) -> int:
        """D."""
        return self.weight.shape[-1] * 32 // self.bits if self.bits else self.weight.shape[-1]

    def rows(self, tokens: mx.array) -> mx.array:
        """float32 [..., D], the embeddings of int32 [...]."""
        if self.scales is None:
            return self.weight[tokens].astype(mx.float32)
        scales, biases = self.scales[tokens], None if self.biases is None else self.biases[tokens]
        if self.mode == "affine":
            assert biases is not None
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        unpacked = mx.dequantize(
            self.weight[tokens],
            scales,
            biases,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )
        return unpacked.astype(mx.float32)


class Survivors(NamedTuple):
    """The likeliest tokens of rows of logits, in the order of their ids."""

    tokens: mx.array  # int32 [..., K]; zeros after the last
    probabilities: mx.array  # float32 [..., K], not renormalised; zeros after the last
    counts: mx.array  # int32 [...]
    error: mx.array  # float32 [...], at least the sum of probability * norm of all other tokens


class SurvivorSum(NamedTuple):
    """What `sum_survivors` makes."""

    soft: mx.array  # float [..., D]
    squares: mx.array  # float32 [...], the sum of its squares before it is rounded


def capacity(vocabulary: int) -> int:
    """K: how many survivors there is room for."""
    return min(MOST_SURVIVORS, vocabulary)


def survivors(logits: Logits, statistics: LogitStatistics, norms: mx.array) -> Survivors:
    """The tokens whose scaled logit is at most DEPTH below the best one's, at most K.

    Beyond K those with the higher ids are left out. The error is NaN where logits hold NaN or +inf,
    or -inf only. `norms` is the length of every token's embedding, float32 [V].
    """
    shape, size = logits.raw.shape[:-1], logits.raw.shape[-1]
    raw = logits.raw.reshape(-1, size)
    normaliser, best = statistics.normaliser.reshape(-1), statistics.best.reshape(-1)
    at_a_time = max(_NUMBERS_AT_A_TIME // (8 * size), 1)
    pieces = []
    for start in range(0, raw.shape[0], at_a_time):
        rows = slice(start, start + at_a_time)
        some = logits._replace(raw=raw[rows])
        pieces.append(_survivors(some, normaliser[rows], best[rows], norms))
    joined = [mx.concatenate(list(parts)) for parts in zip(*pieces, strict=True)]
    return Survivors(*[array.reshape(*shape, *array.shape[1:]) for array in joined])


def _survivors(
    logits: Logits, normaliser: mx.array, best: mx.array, norms: mx.array
) -> tuple[mx.array, ...]:
    values = logits.values()
    rows, size = values.shape
    most = capacity(size)
    probs = mx.exp(values - normaliser[:, None])
    near = values >= logits.of(best)[:, None] - DEPTH
    place = mx.cumsum(near.astype(mx.int32), axis=-1) - 1
    kept = near & (place < most)
    # All others go to one place more, which is cut off.
    place = mx.where(kept, place, most)
    empty = mx.zeros((rows, most + 1), mx.int32)
    ids = mx.broadcast_to(mx.arange(size, dtype=mx.int32), values.shape)
    tokens = mx.put_along_axis(empty, place, ids, axis=-1)[:, :most]
    own = mx.put_along_axis(empty.astype(mx.float32), place, probs, axis=-1)[:, :most]
    count = mx.sum(kept.astype(mx.int32), axis=-1)
    error = _SLACK * mx.sum(mx.where(kept, 0.0, probs * norms), axis=-1)
    return tokens, own, count, mx.where(mx.isfinite(normaliser), error, mx.nan)


def sum_survivors(survivors: Survivors, table: Table, dtype: mx.Dtype) -> SurvivorSum:
    """The sum of probability * embedding over the survivors, [..., D] in `dtype`."""
    shape, most = survivors.tokens.shape[:-1], survivors.tokens.shape[-1]
    tokens = survivors.tokens.reshape(-1, most)
    probabilities = survivors.probabilities.reshape(-1, 1, most)
    at_a_time = max(_NUMBERS_AT_A_TIME // (most * table.width), 1)
    sums = []
    for start in range(0, tokens.shape[0], at_a_time):
        rows = slice(start, start + at_a_time)
        sums.append((probabilities[rows] @ table.rows(tokens[rows])).squeeze(1))
    soft = mx.concatenate(sums).reshape(*shape, table.width)
    return SurvivorSum(soft.astype(dtype), mx.sum(soft * soft, axis=-1))
