"""What the sampler's kernels compute, in plain MLX: the definition, as in `reference`.

Letters: B batch, L canvas, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from mlx_diffusiongemma.kernels.digest import Digest

_NUMBERS_AT_A_TIME = 65_536
# A sum over more numbers than that is one of sums over so many: MLX adds a row up one after another
# on a CPU, and comes out 2e-3 nats off for an entropy of the released vocabulary.
_LONGEST_SUM = 1024


class Logits(NamedTuple):
    """Logits as the head wrote them, and what is still to be done to each number.

    Kept apart so that no array as wide as the vocabulary is made for it.
    """

    raw: mx.array  # float [..., V]
    cap: float = 0.0  # softcap; 0 for none
    temperature: float = 1.0

    def values(self) -> mx.array:
        """float32 [..., V]: softcapped, over the temperature."""
        values = self.raw.astype(mx.float32)
        if self.cap:
            values = mx.tanh(values / self.cap) * self.cap
        return values if self.temperature == 1 else values / self.temperature

    def of(self, tokens: mx.array) -> mx.array:
        """float32 [...]: the values of one token for each row, int32 [...]."""
        picked = mx.take_along_axis(self.raw, tokens[..., None], axis=-1)
        return self._replace(raw=picked).values().squeeze(-1)

    def at(self, temperature: float) -> "Logits":
        """The same at another temperature."""
        return self._replace(temperature=temperature)

    def first(self, length: int) -> "Logits":
        """Those of the first positions of [B, L, V]."""
        return self._replace(raw=self.raw[:, :length])


class LogitStatistics(NamedTuple):
    """Of rows of logits: all [...]."""

    entropy: mx.array  # float32, nats
    normaliser: mx.array  # float32, logsumexp
    best: mx.array  # int32, index of the largest


class Belief(NamedTuple):
    """What a step believed of its canvas: logits and their logsumexp, float32 [...].

    With a digest the next step takes what it can from that.
    """

    logits: Logits
    normaliser: mx.array
    digest: Digest | None = None

    def first(self, length: int) -> "Belief":
        """That of the first positions of [B, L, V]."""
        digest = None if self.digest is None else self.digest.first(length)
        return Belief(self.logits.first(length), self.normaliser[:, :length], digest)

    def small_arrays(self) -> tuple[mx.array, ...]:
        """What there is of it besides logits."""
        digest = self.digest
        short = () if digest is None else (digest.soft, digest.squares, digest.error)
        return (self.normaliser, *short)

    def settled(self) -> "Belief":
        """With a digest that knows the rows that it does not suffice for."""
        return self if self.digest is None else self._replace(digest=self.digest.settled())


class Renewed(NamedTuple):
    """What `renew` makes."""

    canvas: mx.array  # int32 [B, L]
    summary: mx.array  # float32 [B, 4]


def logit_statistics(logits: Logits) -> LogitStatistics:
    """What each row says; a forbidden token (logit -inf) adds no entropy.

    The entropy is NaN where the logits hold NaN or +inf, or -inf only.
    """
    return LogitStatistics(*_by_rows(_statistics, logits))


def _statistics(logits: Logits) -> tuple[mx.array, ...]:
    values = logits.values()
    normaliser = _in_blocks(mx.logsumexp, values)
    log_probs = values - normaliser[..., None]
    terms = mx.where(log_probs == -mx.inf, 0.0, mx.exp(log_probs) * log_probs)
    best = mx.argmax(values, axis=-1).astype(mx.int32)
    return -_in_blocks(mx.sum, terms), normaliser, best


def _in_blocks(reduce: Callable[..., mx.array], rows: mx.array) -> mx.array:
    """`reduce` over the last axis of [R, V]."""
    size = rows.shape[-1]
    if size <= _LONGEST_SUM:
        return reduce(rows, axis=-1)
    whole = size - size % _LONGEST_SUM
    parts = [reduce(rows[:, :whole].reshape(rows.shape[0], -1, _LONGEST_SUM), axis=-1)]
    if whole < size:
        parts.append(reduce(rows[:, whole:], axis=-1, keepdims=True))
    return reduce(mx.concatenate(parts, axis=-1), axis=-1)


def draw_tokens(logits: Logits, statistics: LogitStatistics, key: mx.array) -> mx.array:
    """One token for each row, from its distribution; int32 [...].

    A number from [0, 1) is drawn for each row, and the token is the first at which the sum of
    probabilities passes it: exact to the bits of that number. Where rounding leaves the whole
    sum below it, and where logits are no numbers, that is the best token.
    """
    numbers = mx.random.uniform(shape=statistics.best.shape, key=key)
    (tokens,) = _by_rows(_draw, logits, statistics.normaliser, statistics.best, numbers)
    return tokens


def _draw(
    logits: Logits, normaliser: mx.array, best: mx.array, numbers: mx.array
) -> tuple[mx.array, ...]:
    probs = mx.exp(logits.values() - normaliser[..., None])
    passed = (mx.cumsum(probs, axis=-1) > numbers[..., None]) & (probs > 0)
    first = mx.argmax(passed, axis=-1).astype(mx.int32)
    return (mx.where(mx.any(passed, axis=-1), first, best),)


def _by_rows(
    function: Callable[..., tuple[mx.array, ...]], logits: Logits, *arrays: mx.array
) -> list[mx.array]:
    """`function`, of logits and arrays with a number for each row, for a few rows at a time.

    So its temporary arrays are small: they stay in the cache, and MLX, which makes arrays ahead of
    their numbers, never holds many as wide as the vocabulary for every row.
    """
    shape, size = logits.raw.shape[:-1], logits.raw.shape[-1]
    raw, flat = logits.raw.reshape(-1, size), [array.reshape(-1) for array in arrays]
    at_a_time = max(_NUMBERS_AT_A_TIME // size, 1)
    pieces = []
    for start in range(0, raw.shape[0], at_a_time):
        rows = slice(start, start + at_a_time)
        pieces.append(function(logits._replace(raw=raw[rows]), *[each[rows] for each in flat]))
    return [mx.concatenate(list(parts)).reshape(shape) for parts in zip(*pieces, strict=True)]


def noise_tokens(shape: tuple[int, int], vocab_size: int, key: mx.array) -> mx.array:
    """int32 [B, L], uniform over the vocabulary, as far as float32 numbers from [0, 1) are."""
    numbers = mx.random.uniform(shape=shape, key=key) * vocab_size
    return mx.minimum(numbers.astype(mx.int32), vocab_size - 1)


def accept_within_bound(entropy: mx.array, entropy_bound: float) -> mx.array:
    """Accept the most certain positions while their joint uncertainty stays within the bound.

    With the positions of float32 [B, L] sorted by entropy (ties by position), one is accepted when
    the entropies before it sum to at most `entropy_bound` nats. So at least one is always accepted.
    Returns bool [B, L].
    """
    order = mx.argsort(entropy, axis=-1)
    ascending = mx.take_along_axis(entropy, order, axis=-1)
    before = mx.cumsum(ascending, axis=-1) - ascending
    accepted = mx.zeros(entropy.shape, mx.bool_)
    return mx.put_along_axis(accepted, order, before <= entropy_bound, axis=-1)


def renew(
    accepted: mx.array,
    tokens: mx.array,
    noise: mx.array,
    statistics: LogitStatistics,
    accepted_before: mx.array,
    best_before: mx.array,
) -> Renewed:
    """The next canvas: `tokens` where accepted, else `noise`; and what the stop rules ask.

    All arrays are [B, L]. The summary holds, as float32: the mean entropy; how many best tokens
    and how many of `accepted` differ from the step before; how many entropies are no finite
    numbers.
    """
    entropy = statistics.entropy
    summary = [
        mx.mean(entropy, axis=-1),
        *(
            mx.sum(each, axis=-1).astype(mx.float32)
            for each in (
                statistics.best != best_before,
                accepted != accepted_before,
                ~mx.isfinite(entropy),
            )
        ),
    ]
    return Renewed(mx.where(accepted, tokens, noise), mx.stack(summary, axis=-1))


def probabilities(belief: Belief, first: int, count: int, dtype: mx.Dtype) -> mx.array:
    """Of `count` tokens from `first` on: [..., count] in `dtype`."""
    part = belief.logits._replace(raw=belief.logits.raw[..., first : first + count])
    return mx.exp(part.values() - belief.normaliser[..., None]).astype(dtype)
