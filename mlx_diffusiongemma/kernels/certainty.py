"""How certain the model is of every position, and which positions that accepts.

On Metal a launch each; `reference_sampler` has the definitions.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.kernels import reference_sampler as reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference_sampler import Logits, LogitStatistics

_LANES = 32
_MOST_THREADS = 1024
_LOGITS_PER_THREAD = 8  # at least: of a large vocabulary more
LOGIT_STATISTICS = Kernel(
    "logit_statistics",
    ("logits", "cap", "temperature"),
    ("entropy", "normaliser", "best"),
    ("logit_functions",),
)
ACCEPT = Kernel("accept_within_bound", ("entropy", "bound"), ("accepted",))


def logit_statistics(logits: Logits) -> LogitStatistics:
    """Entropy, normaliser and best token of every row; see `reference_sampler`."""
    if dispatch.uses_kernels(_STATISTICS, logits):
        return _logit_statistics(logits)
    return reference.logit_statistics(logits)


def prepared(logits: Logits) -> Logits:
    """What the sampler reads several times: as it is for kernels, else computed once for all."""
    if dispatch.uses_kernels(_STATISTICS, logits):
        return logits
    return Logits(logits.values())


def accept_within_bound(entropy: mx.array, entropy_bound: float) -> mx.array:
    """The positions of float32 [B, L] to accept; see `reference_sampler`."""
    if entropy.shape[-1] <= _MOST_THREADS and dispatch.uses_kernels(_ACCEPT, entropy):
        return _accept(entropy, entropy_bound)[0]
    return reference.accept_within_bound(entropy, entropy_bound)


def logit_statistics_launch(logits: Logits) -> Launch:
    """See metal/logit_statistics.metal."""
    rows, *scalars = as_inputs(logits)
    threads = threads_for(rows.shape[-1])
    count = rows.shape[0]
    return Launch(
        LOGIT_STATISTICS,
        (rows, *scalars),
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


def as_inputs(logits: Logits) -> tuple[mx.array, mx.array, mx.array]:
    """The rows of logits, their softcap and their temperature, for a kernel."""
    rows = logits.raw.reshape(-1, logits.raw.shape[-1])
    return rows, mx.array(logits.cap, mx.float32), mx.array(logits.temperature, mx.float32)


def threads_for(vocabulary: int) -> int:
    """Threads that read a row together: a multiple of 32."""
    return _threads(-(-vocabulary // _LOGITS_PER_THREAD))


def _threads(wanted: int) -> int:
    return min(_MOST_THREADS, -(-wanted // _LANES) * _LANES)


def _logit_statistics(logits: Logits) -> LogitStatistics:
    shape = logits.raw.shape[:-1]
    outputs = dispatch.run(logit_statistics_launch(logits))
    return LogitStatistics(*[output.reshape(shape) for output in outputs])


def _accept(entropy: mx.array, entropy_bound: float) -> list[mx.array]:
    return list(dispatch.run(accept_launch(entropy, entropy_bound)))


def _statistics_trial(logits: Logits) -> tuple[Logits]:
    return (drawn_logits(logits),)


def drawn_logits(like: Logits) -> Logits:
    """One row of harmless numbers of the same kind, for a trial."""
    drawn = mx.random.normal((1, like.raw.shape[-1]), key=mx.random.key(0)) * 3
    return like._replace(raw=drawn.astype(like.raw.dtype))


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
