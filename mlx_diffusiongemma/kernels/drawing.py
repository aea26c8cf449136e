"""What chance decides: a token for every position from its logits, and noise.

Both are drawn inside of their kernels from a key, in the numbers that `mx.random.uniform` makes
from it. On Metal a launch each; `reference_sampler` has the definitions.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import certainty, dispatch
from mlx_diffusiongemma.kernels import reference_sampler as reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference_sampler import Logits, LogitStatistics

_THREADS = 256
DRAW = Kernel(
    "draw_tokens",
    ("logits", "normaliser", "best", "key", "cap", "temperature"),
    ("tokens",),
    ("logit_functions", "random_functions"),
)
NOISE = Kernel("noise_tokens", ("key", "vocabulary"), ("tokens",), ("random_functions",))


def draw_tokens(logits: Logits, statistics: LogitStatistics, key: mx.array) -> mx.array:
    """A token for every row, from one random number each; see `reference_sampler`.

    The kernel adds probabilities in another order than the twin, so that a number very close to a
    border may give another token.
    """
    if dispatch.uses_kernels(_DRAW, logits, statistics, key):
        return _draw(logits, statistics, key)[0]
    return reference.draw_tokens(logits, statistics, key)


def noise_tokens(shape: tuple[int, int], vocab_size: int, key: mx.array) -> mx.array:
    """int32 [B, L], uniform over the vocabulary; see `reference_sampler`."""
    if dispatch.uses_kernels(_NOISE, key, vocab_size):
        return _noise(shape, vocab_size, key)[0]
    return reference.noise_tokens(shape, vocab_size, key)


def draw_launch(logits: Logits, statistics: LogitStatistics, key: mx.array) -> Launch:
    """See metal/draw_tokens.metal."""
    rows, *scalars = certainty.as_inputs(logits)
    threads, count = certainty.threads_for(rows.shape[-1]), rows.shape[0]
    flat = statistics.normaliser.reshape(-1), statistics.best.reshape(-1)
    return Launch(
        DRAW,
        (rows, *flat, key, *scalars),
        (("THREADS", threads),),
        grid=(count * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((count,),),
        output_dtypes=(mx.int32,),
    )


def noise_launch(shape: tuple[int, int], vocab_size: int, key: mx.array) -> Launch:
    """See metal/noise_tokens.metal."""
    count = shape[0] * shape[1]
    return Launch(
        NOISE,
        (key, mx.array(vocab_size, mx.int32)),
        (),
        grid=(count, 1, 1),
        threadgroup=(min(count, _THREADS), 1, 1),
        output_shapes=((count,),),
        output_dtypes=(mx.int32,),
    )


def _draw(logits: Logits, statistics: LogitStatistics, key: mx.array) -> list[mx.array]:
    (tokens,) = dispatch.run(draw_launch(logits, statistics, key))
    return [tokens.reshape(statistics.best.shape)]


def _noise(shape: tuple[int, int], vocab_size: int, key: mx.array) -> list[mx.array]:
    return [dispatch.run(noise_launch(shape, vocab_size, key))[0].reshape(shape)]


def _draw_trial(
    logits: Logits, statistics: LogitStatistics, key: mx.array
) -> tuple[Logits, LogitStatistics, mx.array]:
    """Rows that leave no doubt: rounding must not decide between tokens."""
    vocabulary = logits.raw.shape[-1]
    sure = mx.where(mx.arange(vocabulary) == vocabulary // 2, 0.0, -1e4)
    drawn = Logits(mx.broadcast_to(sure, (8, vocabulary)).astype(logits.raw.dtype))
    return drawn, reference.logit_statistics(drawn), key


_DRAW = Operation("draw_tokens", _draw, lambda *given: [reference.draw_tokens(*given)], _draw_trial)
_NOISE = Operation(
    "noise_tokens",
    lambda key, vocab_size: _noise((2, 255), vocab_size, key),
    lambda key, vocab_size: [reference.noise_tokens((2, 255), vocab_size, key)],
    lambda key, vocab_size: (key, vocab_size),
)
