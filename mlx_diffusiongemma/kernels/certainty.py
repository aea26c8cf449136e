"""How certain the model is of every position, and which positions that accepts.

On Metal a launch each; `reference` has the definitions.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch, reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import LogitStatistics

_LANES = 32
_MOST_THREADS = 1024
_LOGITS_PER_THREAD = 8  # at least: of a large vocabulary more
LOGIT_STATISTICS = Kernel("logit_statistics", ("logits",), ("entropy", "normaliser", "best"))
ACCEPT = Kernel("accept_within_bound", ("entropy", "bound"), ("accepted",))


def logit_statistics(logits: mx.array) -> LogitStatistics:
    """Entropy, normaliser and best token of float [..., V]; see `reference.logit_statistics`."""
    if dispatch.uses_kernels(_STATISTICS, logits):
        return _logit_statistics(logits)
    return reference.logit_statistics(logits)


def accept_within_bound(entropy: mx.array, entropy_bound: float) -> mx.array:
    """The positions of float32 [B, L] to accept; see `reference.accept_within_bound`."""
    if entropy.shape[-1] <= _MOST_THREADS and dispatch.uses_kernels(_ACCEPT, entropy):
        return _accept(entropy, entropy_bound)[0]
    return reference.accept_within_bound(entropy, entropy_bound)


def logit_statistics_launch(logits: mx.array) -> Launch:
    """See metal/logit_statistics.metal."""
    vocabulary = logits.shape[-1]
    rows = logits.reshape(-1, vocabulary)
    threads = _threads(-(-vocabulary // _LOGITS_PER_THREAD))
    count = rows.shape[0]
    return Launch(
        LOGIT_STATISTICS,
        (rows,),
        (("THREADS", threads),),
        grid=(count * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((count,),) * 3,
        output_dtypes=(mx.float32, mx.float32, mx.int32),
    )


def accept_launch(entropy: mx.array, entropy_bound: float) -> Launch:
    """See metal/accept_within_bound.metal."""
    batch, length = entropy.shape
    threads = _threads(length)
    return Launch(
        ACCEPT,
        (entropy, mx.array(entropy_bound, mx.float32)),
        (),
        grid=(threads, batch, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((batch, length),),
        output_dtypes=(mx.bool_,),
    )


def _threads(wanted: int) -> int:
    return min(_MOST_THREADS, -(-wanted // _LANES) * _LANES)


def _logit_statistics(logits: mx.array) -> LogitStatistics:
    shape = logits.shape[:-1]
    outputs = dispatch.run(logit_statistics_launch(logits))
    return LogitStatistics(*[output.reshape(shape) for output in outputs])


def _accept(entropy: mx.array, entropy_bound: float) -> list[mx.array]:
    return list(dispatch.run(accept_launch(entropy, entropy_bound)))


def _statistics_trial(logits: mx.array) -> tuple[mx.array]:
    drawn = mx.random.normal((1, logits.shape[-1]), key=mx.random.key(0)) * 3
    return (drawn.astype(logits.dtype),)


def _accept_trial(entropy: mx.array) -> tuple[mx.array, float]:
    # Multiples of 1/8: their sums are exact in any order, so that the masks must be equal.
    drawn = mx.random.randint(0, 8, entropy.shape, key=mx.random.key(0)).astype(mx.float32)
    return drawn / 8, 3.0


_STATISTICS = Operation(
    "logit_statistics", _logit_statistics, reference.logit_statistics, _statistics_trial
)
_ACCEPT = Operation(
    "accept_within_bound",
    _accept,
    lambda *arguments: [reference.accept_within_bound(*arguments)],
    _accept_trial,
)
