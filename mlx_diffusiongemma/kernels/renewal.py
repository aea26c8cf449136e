"""The end of a denoising step: the next canvas, and what the stop rules ask of this one.

On Metal one launch; `reference_sampler` has the definition.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.kernels import reference_sampler as reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference_sampler import LogitStatistics, Renewed

_THREADS = 256
RENEW = Kernel(
    "renew",
    ("accepted", "tokens", "noise", "best", "entropy", "accepted_before", "best_before"),
    ("canvas", "summary"),
    ("norm_functions",),
)


def renew(
    accepted: mx.array,
    tokens: mx.array,
    noise: mx.array,
    statistics: LogitStatistics,
    accepted_before: mx.array,
    best_before: mx.array,
) -> Renewed:
    """The next canvas and a summary of this step, of arrays [B, L]; see `reference_sampler`."""
    arguments = accepted, tokens, noise, statistics, accepted_before, best_before
    if dispatch.uses_kernels(_RENEW, *arguments):
        return _renew(*arguments)
    return reference.renew(*arguments)


def renew_launch(
    accepted: mx.array,
    tokens: mx.array,
    noise: mx.array,
    statistics: LogitStatistics,
    accepted_before: mx.array,
    best_before: mx.array,
) -> Launch:
    """See metal/renew.metal."""
    shown = statistics.best, statistics.entropy
    batch, length = accepted.shape
    return Launch(
        RENEW,
        (accepted, tokens, noise, *shown, accepted_before, best_before),
        (("THREADS", _THREADS),),
        grid=(batch * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((batch, length), (batch, 4)),
        output_dtypes=(mx.int32, mx.float32),
    )


def _renew(
    accepted: mx.array,
    tokens: mx.array,
    noise: mx.array,
    statistics: LogitStatistics,
    accepted_before: mx.array,
    best_before: mx.array,
) -> Renewed:
    return Renewed(
        *dispatch.run(
            renew_launch(accepted, tokens, noise, statistics, accepted_before, best_before)
        )
    )


def _trial(accepted: mx.array, *others: object) -> tuple[object, ...]:
    numbers = [
        mx.random.randint(0, 5, accepted.shape, dtype=mx.int32, key=mx.random.key(seed))
        for seed in range(6)
    ]
    masks = numbers[0] > 1, numbers[1] > 1
    statistics = LogitStatistics(numbers[2].astype(mx.float32), numbers[2], numbers[3])
    return masks[0], numbers[4], numbers[5], statistics, masks[1], numbers[2]


_RENEW = Operation("renew", _renew, reference.renew, _trial)
