"""From projections to heads: norms, rotation and the layout of attention, in one launch on Metal.

`reference.prepare_heads` is the definition.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch, reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import Heads, HeadWeights

_LANES = 32
_HEADS_PER_THREADGROUP = 8
PREPARE_HEADS = Kernel(
    "prepare_heads",
    (
        *("queries", "keys", "values", "query_norm", "key_norm", "frequencies"),
        *("offset", "eps"),
    ),
    ("query_heads", "key_heads", "value_heads"),
)


def prepare_heads(
    queries: mx.array,
    keys: mx.array,
    values: mx.array | None,
    weights: HeadWeights,
    offset: int,
    eps: float,
) -> Heads:
    """Normalise and rotate the heads of one attention layer; see `reference.prepare_heads`."""
    if dispatch.uses_kernels(_PREPARE_HEADS, queries, keys, values, weights, eps):
        return _prepare_heads(queries, keys, values, weights, offset, eps)
    return reference.prepare_heads(queries, keys, values, weights, offset, eps)


def prepare_heads_launch(
    queries: mx.array,
    keys: mx.array,
    values: mx.array | None,
    weights: HeadWeights,
    offset: int,
    eps: float,
) -> Launch:
    """See metal/prepare_heads.metal."""
    batch, length, _ = queries.shape
    head_dim = weights.query_norm.shape[-1]
    heads, kv_heads = queries.shape[-1] // head_dim, keys.shape[-1] // head_dim
    scalars = mx.array(offset, mx.int32), mx.array(eps, mx.float32)
    key_shape = (batch, kv_heads, length, head_dim)
    return Launch(
        PREPARE_HEADS,
        (queries, keys, keys if values is None else values, *weights, *scalars),
        (("T", queries.dtype), ("H", heads), ("KV", kv_heads), ("D", head_dim)),
        grid=(_LANES * (heads + 2 * kv_heads), length, batch),
        threadgroup=(_LANES * _HEADS_PER_THREADGROUP, 1, 1),
        output_shapes=((batch, heads, length, head_dim), key_shape, key_shape),
        output_dtypes=(queries.dtype,) * 3,
    )


def _prepare_heads(
    queries: mx.array,
    keys: mx.array,
    values: mx.array | None,
    weights: HeadWeights,
    offset: int,
    eps: float,
) -> Heads:
    return Heads(*dispatch.run(prepare_heads_launch(queries, keys, values, weights, offset, eps)))


def _trial(
    queries: mx.array, keys: mx.array, values: mx.array | None, weights: HeadWeights, eps: float
) -> tuple[object, ...]:
    drawn = [
        None if x is None else mx.random.normal(x.shape, key=mx.random.key(seed)).astype(x.dtype)
        for seed, x in enumerate((queries, keys, values))
    ]
    return *drawn, weights, 7, eps


_PREPARE_HEADS = Operation("prepare_heads", _prepare_heads, reference.prepare_heads, _trial)
