"""The likeliest tokens of every position, and the sum of their embeddings, with a certificate.

On Metal a launch each; `reference_sparse` has the definitions.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import certainty, dispatch
from mlx_diffusiongemma.kernels import reference_sparse as reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference_sampler import Logits, LogitStatistics, logit_statistics
from mlx_diffusiongemma.kernels.reference_sparse import Survivors, SurvivorSum, Table

_LANES = 32
_THREADS = 64
_COLUMNS_PER_THREAD = 4
_PACKED_BITS = (4, 8)
SURVIVORS = Kernel(
    "survivors",
    ("logits", "normaliser", "best", "norms", "cap", "temperature", "depth"),
    ("tokens", "probabilities", "counts", "error"),
    ("logit_functions", "norm_functions"),
)
_PICKED = ("tokens", "probabilities", "counts")
SUM = Kernel("sum_survivors", (*_PICKED, "weight"), ("soft", "squares"))
SUM_PACKED = Kernel(
    "sum_packed_survivors", (*_PICKED, "weight", "scales", "biases"), ("soft", "squares")
)


def survivors(logits: Logits, statistics: LogitStatistics, norms: mx.array) -> Survivors:
    """The likeliest tokens of every row, and what the others can add; see `reference_sparse`."""
    if dispatch.uses_kernels(_SURVIVORS, logits, statistics, norms):
        return _survivors(logits, statistics, norms)
    return reference.survivors(logits, statistics, norms)


def sum_survivors(picked: Survivors, table: Table, dtype: mx.Dtype) -> SurvivorSum:
    """The sum of probability * embedding over survivors; see `reference_sparse`.

    There are kernels for numbers and for affine packing with 4 or 8 bits.
    """
    has_kernel = table.scales is None or (table.mode == "affine" and table.bits in _PACKED_BITS)
    if has_kernel and dispatch.uses_kernels(_SUM, picked, table, dtype):
        return _sum(picked, table, dtype)
    return reference.sum_survivors(picked, table, dtype)


def survivors_launch(logits: Logits, statistics: LogitStatistics, norms: mx.array) -> Launch:
    """See metal/survivors.metal."""
    rows, *scalars = certainty.as_inputs(logits)
    count, vocabulary = rows.shape
    threads, most = certainty.threads_for(vocabulary), reference.capacity(vocabulary)
    flat = statistics.normaliser.reshape(-1), statistics.best.reshape(-1)
    return Launch(
        SURVIVORS,
        (rows, *flat, norms, *scalars, mx.array(reference.DEPTH, mx.float32)),
        (("THREADS", threads), ("K", most)),
        grid=(count * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((count, most), (count, most), (count,), (count,)),
        output_dtypes=(mx.int32, mx.float32, mx.int32, mx.float32),
    )


def sum_launch(picked: Survivors, table: Table, dtype: mx.Dtype) -> Launch:
    """See metal/sum_survivors.metal and metal/sum_packed_survivors.metal."""
    most, width = picked.tokens.shape[-1], table.width
    rows = picked.counts.size
    inputs: tuple[mx.array, ...] = (
        picked.tokens.reshape(rows, most),
        picked.probabilities.reshape(rows, most),
        picked.counts.reshape(rows),
        table.weight,
    )
    template: tuple[tuple[str, int | mx.Dtype], ...] = (("T", dtype), ("D", width), ("K", most))
    kernel, each = SUM, _COLUMNS_PER_THREAD
    if table.scales is not None and table.biases is not None:
        kernel, each = SUM_PACKED, 32 // table.bits
        inputs = (*inputs, table.scales, table.biases)
        template = (*template, ("BITS", table.bits), ("GROUP", table.group_size))
    simdgroups = -(-width // (each * _LANES))
    return Launch(
        kernel,
        inputs,
        template,
        grid=(simdgroups * _LANES, rows, 1),
        threadgroup=(min(simdgroups * _LANES, _THREADS), 1, 1),
        output_shapes=((rows, width), (rows, simdgroups)),
        output_dtypes=(dtype, mx.float32),
    )


def _survivors(logits: Logits, statistics: LogitStatistics, norms: mx.array) -> Survivors:
    shape = statistics.best.shape
    outputs = dispatch.run(survivors_launch(logits, statistics, norms))
    return Survivors(*[output.reshape(*shape, *output.shape[1:]) for output in outputs])


def _sum(picked: Survivors, table: Table, dtype: mx.Dtype) -> SurvivorSum:
    soft, squares = dispatch.run(sum_launch(picked, table, dtype))
    shape = picked.counts.shape
    return SurvivorSum(soft.reshape(*shape, table.width), mx.sum(squares, axis=-1).reshape(shape))


def _survivors_trial(
    logits: Logits, statistics: LogitStatistics, norms: mx.array
) -> tuple[object, ...]:
    """Rows whose logits are multiples of 1/4 and whose border lies between two of them."""
    vocabulary = logits.raw.shape[-1]
    drawn = mx.random.randint(-60, 8, (2, vocabulary), key=mx.random.key(0)) * 0.25 + 0.125
    drawn[:, vocabulary // 2] = 2.0
    plain = Logits(drawn.astype(logits.raw.dtype))
    return plain, logit_statistics(plain), norms


def _sum_trial(picked: Survivors, table: Table, dtype: mx.Dtype) -> tuple[object, ...]:
    """With the real embedding, which is there already."""
    most, vocabulary = picked.tokens.shape[-1], table.weight.shape[0]
    tokens = mx.random.randint(0, vocabulary, (3, most), dtype=mx.int32, key=mx.random.key(0))
    probabilities = mx.random.uniform(shape=(3, most), key=mx.random.key(1)) / most
    count = mx.array([most, most // 2, 1], mx.int32)
    used = mx.arange(most) < count[:, None]
    drawn = mx.where(used, tokens, 0), mx.where(used, probabilities, 0.0)
    return Survivors(*drawn, count, mx.zeros((3,))), table, dtype


_SURVIVORS = Operation("survivors", _survivors, reference.survivors, _survivors_trial)
_SUM = Operation("sum_survivors", _sum, reference.sum_survivors, _sum_trial)
