"""The residual stream of a layer: what is added to it, and the norms of what comes out.

    residual, attended         --> add_attention    --> FeedForwardInputs
    residual, routing          --> gather_normed    --> rows of the experts
    residual, dense, experts   --> add_feed_forward --> Stream, the next layer's input

On Metal a launch each; `reference` has the definitions.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch, reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import (
    AttentionWeights,
    FeedForwardInputs,
    FeedForwardWeights,
    Routing,
    RowNorm,
    Stream,
)

_LANES = 32
_COLUMNS_PER_THREAD = 8
_MOST_THREADS = 1024
_GATHER_THREADS = 256
_FUNCTIONS = ("norm_functions",)
ADD_ATTENTION = Kernel(
    "add_attention",
    (
        *("residual", "attended", "attended_norm", "dense_norm", "router_scale"),
        "eps",
    ),
    ("sum", "dense", "router", "rms_inverses"),
    _FUNCTIONS,
)
ADD_FEED_FORWARD = Kernel(
    "add_feed_forward",
    (
        *("residual", "feed_forward", "outputs", "inverse", "weights"),
        *("dense_norm", "routed_norm", "both_norm", "next_norm", "scalar", "eps"),
    ),
    ("sum", "normed"),
    _FUNCTIONS,
)
GATHER_NORMED = Kernel("gather_normed", ("rows", "inverse_rms", "weight", "tokens"), ("out",))


def add_attention(
    residual: mx.array, attended: mx.array, weights: AttentionWeights, eps: float
) -> FeedForwardInputs:
    """Add attention's output and prepare the inputs of what follows; see `reference`."""
    if dispatch.uses_kernels(_ADD_ATTENTION, residual, attended, weights, eps):
        return _add_attention(residual, attended, weights, eps)
    return reference.add_attention(residual, attended, weights, eps)


def add_feed_forward(
    residual: mx.array,
    dense: mx.array,
    outputs: mx.array,
    routing: Routing,
    weights: FeedForwardWeights,
    eps: float,
) -> Stream:
    """Add both halves of the feed-forward and prepare the next layer's input; see `reference`."""
    arguments = residual, dense, outputs, routing, weights, eps
    if dispatch.uses_kernels(_ADD_FEED_FORWARD, *arguments):
        return _add_feed_forward(*arguments)
    return reference.add_feed_forward(*arguments)


def gather_normed(rows: mx.array, norm: RowNorm, tokens: mx.array) -> mx.array:
    """Normalised rows in the order of the experts; see `reference`."""
    if dispatch.uses_kernels(_GATHER_NORMED, rows, norm, tokens):
        return _gather_normed(rows, norm, tokens)[0]
    return reference.gather_normed(rows, norm, tokens)


def _gather_normed(rows: mx.array, norm: RowNorm, tokens: mx.array) -> list[mx.array]:
    return list(dispatch.run(gather_normed_launch(rows, norm, tokens)))


def _add_attention(
    residual: mx.array, attended: mx.array, weights: AttentionWeights, eps: float
) -> FeedForwardInputs:
    outputs = dispatch.run(add_attention_launch(residual, attended, weights, eps))
    added, dense, router = (output.reshape(residual.shape) for output in outputs[:3])
    return FeedForwardInputs(added, dense, router, outputs[3].reshape(residual.shape[:-1]))


def _add_feed_forward(
    residual: mx.array,
    dense: mx.array,
    outputs: mx.array,
    routing: Routing,
    weights: FeedForwardWeights,
    eps: float,
) -> Stream:
    launch = add_feed_forward_launch(residual, dense, outputs, routing, weights, eps)
    return Stream(*[output.reshape(residual.shape) for output in dispatch.run(launch)])


def add_attention_launch(
    residual: mx.array, attended: mx.array, weights: AttentionWeights, eps: float
) -> Launch:
    """See metal/add_attention.metal."""
    inputs = (residual, attended, *weights, mx.array(eps, mx.float32))
    launch = _launch(ADD_ATTENTION, inputs, residual, ())
    *shapes, (rows, _) = launch.output_shapes
    dtypes = (*launch.output_dtypes[:-1], mx.float32)
    return replace(launch, output_shapes=(*shapes, (rows,)), output_dtypes=dtypes)


def gather_normed_launch(rows: mx.array, norm: RowNorm, tokens: mx.array) -> Launch:
    """See metal/gather_normed.metal."""
    width = rows.shape[-1]
    return Launch(
        GATHER_NORMED,
        (rows, *norm, tokens),
        (("T", rows.dtype),),
        grid=(width, tokens.size, 1),
        threadgroup=(min(width, _GATHER_THREADS), 1, 1),
        output_shapes=((tokens.size, width),),
        output_dtypes=(rows.dtype,),
    )


def add_feed_forward_launch(
    residual: mx.array,
    dense: mx.array,
    outputs: mx.array,
    routing: Routing,
    weights: FeedForwardWeights,
    eps: float,
) -> Launch:
    """See metal/add_feed_forward.metal."""
    slots = (outputs, routing.inverse, routing.weights)
    inputs = (residual, dense, *slots, *weights, mx.array(eps, mx.float32))
    return _launch(ADD_FEED_FORWARD, inputs, residual, (("K", routing.inverse.shape[-1]),))


def _launch(
    kernel: Kernel,
    inputs: tuple[mx.array, ...],
    residual: mx.array,
    template: tuple[tuple[str, int], ...],
) -> Launch:
    width = residual.shape[-1]
    rows = residual.size // width
    threads = threads_of(width)
    return Launch(
        kernel,
        inputs,
        (("T", residual.dtype), ("D", width), *template, ("THREADS", threads)),
        grid=(rows * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((rows, width),) * len(kernel.outputs),
        output_dtypes=(residual.dtype,) * len(kernel.outputs),
    )


def threads_of(width: int) -> int:
    """Threads for a row: eight columns each, in whole simdgroups."""
    simdgroups = -(-width // (_LANES * _COLUMNS_PER_THREAD))
    return min(_LANES * simdgroups, _MOST_THREADS)


def _normal(like: mx.array, seed: int) -> mx.array:
    return mx.random.normal(like.shape, key=mx.random.key(seed)).astype(like.dtype)


def all_normal(arrays: Sequence[mx.array]) -> list[mx.array]:
    """Normal numbers in the shapes and dtypes of `arrays`, for a trial."""
    return [_normal(array, seed) for seed, array in enumerate(arrays)]


def _attention_trial(
    residual: mx.array, attended: mx.array, weights: AttentionWeights, eps: float
) -> tuple[object, ...]:
    drawn = AttentionWeights(*all_normal(weights))
    return *all_normal([residual, attended]), drawn, eps


def _gather_trial(
    rows: mx.array, norm: RowNorm, tokens: mx.array
) -> tuple[mx.array, RowNorm, mx.array]:
    drawn, *parts = all_normal([rows, *norm])
    places = mx.random.randint(0, rows.shape[0], tokens.shape, key=mx.random.key(3))
    return drawn, RowNorm(*parts), places.astype(mx.uint32)


def _feed_forward_trial(
    residual: mx.array,
    dense: mx.array,
    outputs: mx.array,
    routing: Routing,
    weights: FeedForwardWeights,
    eps: float,
) -> tuple[object, ...]:
    slots = mx.random.permutation(outputs.shape[0], key=mx.random.key(9)).astype(mx.uint32)
    drawn = routing._replace(
        inverse=slots.reshape(routing.inverse.shape), weights=_normal(routing.weights, 8)
    )
    arrays = all_normal([residual, dense, outputs])
    return *arrays, drawn, FeedForwardWeights(*all_normal(weights)), eps


def _as_rounded(inputs: FeedForwardInputs) -> FeedForwardInputs:
    """For a trial: the residual is rounded, and so its root mean square is known no better."""
    rounded = inputs.inverse_rms.astype(inputs.residual.dtype)
    return inputs._replace(inverse_rms=rounded)


_ADD_ATTENTION = Operation(
    "add_attention",
    lambda *arguments: _as_rounded(_add_attention(*arguments)),
    lambda *arguments: _as_rounded(reference.add_attention(*arguments)),
    _attention_trial,
)
_GATHER_NORMED = Operation(
    "gather_normed",
    _gather_normed,
    lambda *given: [reference.gather_normed(*given)],
    _gather_trial,
)
_ADD_FEED_FORWARD = Operation(
    "add_feed_forward", _add_feed_forward, reference.add_feed_forward, _feed_forward_trial
)
