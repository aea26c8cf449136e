"""The beginning of a denoising step: what the step before believed, as an input of the first layer.

On Metal a launch each; `reference_sampler` and `reference` have the definitions.
"""

from collections.abc import Sequence

import mlx.core as mx

from mlx_diffusiongemma.kernels import certainty, dispatch, reference, reference_sampler
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import Stream
from mlx_diffusiongemma.kernels.reference_sampler import Belief
from mlx_diffusiongemma.kernels.residual import all_normal, threads_of

_THREADS = 256
_MOST_PARTS = 2
PROBABILITIES = Kernel(
    "probabilities",
    ("logits", "normaliser", "cap", "temperature", "first"),
    ("out",),
    ("logit_functions",),
)
SOFT_NORM = Kernel(
    "soft_norm", ("one", "other", "weight", "scale", "eps"), ("normed",), ("norm_functions",)
)
CONDITION = Kernel(
    "condition",
    ("embedded", "signal", "next_norm", "scale", "eps"),
    ("sum", "normed"),
    ("norm_functions",),
)


def probabilities(belief: Belief, first: int, count: int, dtype: mx.Dtype) -> mx.array:
    """Of `count` tokens from `first` on: [..., count] in `dtype`; see `reference_sampler`."""
    if dispatch.uses_kernels(_PROBABILITIES, belief, count, dtype):
        return _probabilities(belief, first, count, dtype)[0]
    return reference_sampler.probabilities(belief, first, count, dtype)


def soft_norm(parts: Sequence[mx.array], scale: mx.array, weight: mx.array, eps: float) -> mx.array:
    """The norm of a soft embedding that comes as a sum; see `reference.soft_norm`."""
    given = tuple(parts), scale, weight, eps
    if len(parts) <= _MOST_PARTS and dispatch.uses_kernels(_SOFT_NORM, *given):
        return _soft_norm(*given)[0]
    return reference.soft_norm(*given)


def condition(
    embedded: mx.array, signal: mx.array | None, scale: mx.array, next_norm: mx.array, eps: float
) -> Stream:
    """What the first layer gets; see `reference.condition`."""
    if dispatch.uses_kernels(_CONDITION, embedded, signal, scale, next_norm, eps):
        return _condition(embedded, signal, scale, next_norm, eps)
    return reference.condition(embedded, signal, scale, next_norm, eps)


def probabilities_launch(belief: Belief, first: int, count: int, dtype: mx.Dtype) -> Launch:
    """See metal/probabilities.metal."""
    rows, *scalars = certainty.as_inputs(belief.logits)
    return Launch(
        PROBABILITIES,
        (rows, belief.normaliser.reshape(-1), *scalars, mx.array(first, mx.int32)),
        (("T", dtype),),
        grid=(count, rows.shape[0], 1),
        threadgroup=(min(count, _THREADS), 1, 1),
        output_shapes=((rows.shape[0], count),),
        output_dtypes=(dtype,),
    )


def soft_norm_launch(
    parts: tuple[mx.array, ...], scale: mx.array, weight: mx.array, eps: float
) -> Launch:
    """See metal/soft_norm.metal; one part or two."""
    inputs = (parts[0], parts[-1], weight)
    return _rows_launch(SOFT_NORM, inputs, scale, eps, ("TWO", len(parts) > 1))


def condition_launch(
    embedded: mx.array, signal: mx.array | None, scale: mx.array, next_norm: mx.array, eps: float
) -> Launch:
    """See metal/condition.metal."""
    inputs = (embedded, embedded if signal is None else signal, next_norm)
    return _rows_launch(CONDITION, inputs, scale, eps, ("SIGNAL", signal is not None))


def _rows_launch(
    kernel: Kernel,
    inputs: tuple[mx.array, ...],
    scale: mx.array,
    eps: float,
    condition: tuple[str, bool],
) -> Launch:
    like = inputs[0]
    width = like.shape[-1]
    rows, threads = like.size // width, threads_of(width)
    return Launch(
        kernel,
        (*inputs, scale, mx.array(eps, mx.float32)),
        (("T", like.dtype), ("D", width), ("THREADS", threads), condition),
        grid=(rows * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((rows, width),) * len(kernel.outputs),
        output_dtypes=(like.dtype,) * len(kernel.outputs),
    )


def _probabilities(belief: Belief, first: int, count: int, dtype: mx.Dtype) -> list[mx.array]:
    (out,) = dispatch.run(probabilities_launch(belief, first, count, dtype))
    return [out.reshape(*belief.normaliser.shape, count)]


def _soft_norm(
    parts: tuple[mx.array, ...], scale: mx.array, weight: mx.array, eps: float
) -> list[mx.array]:
    (normed,) = dispatch.run(soft_norm_launch(parts, scale, weight, eps))
    return [normed.reshape(parts[0].shape)]


def _condition(
    embedded: mx.array, signal: mx.array | None, scale: mx.array, next_norm: mx.array, eps: float
) -> Stream:
    outputs = dispatch.run(condition_launch(embedded, signal, scale, next_norm, eps))
    return Stream(*[output.reshape(embedded.shape) for output in outputs])


def _probabilities_trial(
    belief: Belief, count: int, dtype: mx.Dtype
) -> tuple[Belief, int, mx.Dtype]:
    drawn = certainty.drawn_logits(belief.logits)
    return Belief(drawn, reference_sampler.logit_statistics(drawn).normaliser), count, dtype


def _soft_norm_trial(
    parts: tuple[mx.array, ...], scale: mx.array, weight: mx.array, eps: float
) -> tuple[object, ...]:
    *drawn, weight = all_normal([*parts, weight])
    return tuple(drawn), scale, weight, eps


def _condition_trial(
    embedded: mx.array,
    signal: mx.array | None,
    scale: mx.array,
    next_norm: mx.array,
    eps: float,
) -> tuple[object, ...]:
    drawn, other, next_norm = all_normal([embedded, embedded, next_norm])
    return drawn, None if signal is None else other, scale, next_norm, eps


_PROBABILITIES = Operation(
    "probabilities",
    lambda belief, count, dtype: _probabilities(belief, 0, count, dtype),
    lambda belief, count, dtype: [reference_sampler.probabilities(belief, 0, count, dtype)],
    _probabilities_trial,
)
_SOFT_NORM = Operation(
    "soft_norm", _soft_norm, lambda *given: [reference.soft_norm(*given)], _soft_norm_trial
)
_CONDITION = Operation("condition", _condition, reference.condition, _condition_trial)
