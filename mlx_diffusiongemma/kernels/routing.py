"""Routing: which experts a token goes to, and all choices in the order of the experts.

On Metal one launch for a canvas, two for a long prompt; `reference.route` is the definition.
"""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch, reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import Routing

LANES = 32
ONE_LAUNCH_TOKENS = 512  # in one launch one GPU core works alone
_THREADGROUP_BYTES = 32 * 1024
_MOST_SIMDGROUPS = 32
_TOKENS_PER_THREADGROUP = 8

_CHOICES = ("experts", "weights")
_ORDER = ("tokens", "sorted_experts", "inverse", "offsets")
_SCORES = ("scores", "per_expert_scale")
_FUNCTIONS = ("routing_functions",)
ROUTE = Kernel("route", _SCORES, (*_CHOICES, *_ORDER), _FUNCTIONS)
CHOOSE = Kernel("choose_experts", _SCORES, _CHOICES, _FUNCTIONS)
SORT = Kernel("sort_by_expert", ("experts",), _ORDER, _FUNCTIONS)


def route(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Routing:
    """Pick `top_k` experts for each token, weigh them, and sort all choices by expert.

    Args and results are those of `reference.route`. On Metal two experts count as tied when their
    scores are equal, in plain MLX when their probabilities are, which differ where a probability is
    rounded: the weights are then the same, the order may not be.
    """
    if scores.shape[0] <= ONE_LAUNCH_TOKENS:
        if dispatch.uses_kernels(_ONE_LAUNCH, scores, per_expert_scale, top_k):
            return _in_one_launch(scores, per_expert_scale, top_k)
    elif dispatch.uses_kernels(_TWO_LAUNCHES, scores, per_expert_scale, top_k):
        return _in_two_launches(scores, per_expert_scale, top_k)
    return reference.route(scores, per_expert_scale, top_k)


def _in_one_launch(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Routing:
    return Routing(*dispatch.run(route_launch(scores, per_expert_scale, top_k)))


def _in_two_launches(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Routing:
    experts, weights = dispatch.run(choose_launch(scores, per_expert_scale, top_k))
    return Routing(experts, weights, *dispatch.run(sort_launch(experts, scores.shape[1])))


def route_launch(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Launch:
    """All of it in one launch; see metal/route.metal."""
    tokens, experts = scores.shape
    simdgroups = _simdgroups(experts)
    return Launch(
        ROUTE,
        (scores, per_expert_scale),
        (("E", experts), ("K", top_k), ("SIMDGROUPS", simdgroups)),
        grid=(LANES * simdgroups, 1, 1),
        threadgroup=(LANES * simdgroups, 1, 1),
        output_shapes=((tokens, top_k), (tokens, top_k), *_order_shapes(tokens, top_k, experts)),
        output_dtypes=(mx.uint32, mx.float32, *[mx.uint32] * len(_ORDER)),
    )


def choose_launch(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Launch:
    """Experts and weights of many tokens; see metal/choose_experts.metal."""
    tokens, experts = scores.shape
    return Launch(
        CHOOSE,
        (scores, per_expert_scale),
        (("E", experts), ("K", top_k)),
        grid=(LANES * tokens, 1, 1),
        threadgroup=(LANES * _TOKENS_PER_THREADGROUP, 1, 1),
        output_shapes=((tokens, top_k), (tokens, top_k)),
        output_dtypes=(mx.uint32, mx.float32),
    )


def sort_launch(experts: mx.array, num_experts: int) -> Launch:
    """The order of the choices of many tokens; see metal/sort_by_expert.metal."""
    tokens, top_k = experts.shape
    simdgroups = _simdgroups(num_experts)
    return Launch(
        SORT,
        (experts,),
        (("E", num_experts), ("K", top_k), ("SIMDGROUPS", simdgroups)),
        grid=(LANES * simdgroups, 1, 1),
        threadgroup=(LANES * simdgroups, 1, 1),
        output_shapes=_order_shapes(tokens, top_k, num_experts),
        output_dtypes=(mx.uint32,) * len(_ORDER),
    )


def _order_shapes(tokens: int, top_k: int, experts: int) -> tuple[tuple[int, ...], ...]:
    return (tokens * top_k,), (tokens * top_k,), (tokens, top_k), (experts + 1,)


def _simdgroups(experts: int) -> int:
    """As many as their counters leave room for: 32 up to 248 experts. Not a matter of the tokens,
    because each number of simdgroups is another kernel to compile."""
    return min(_MOST_SIMDGROUPS, _THREADGROUP_BYTES // (4 * experts) - 1)


def _trial(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> tuple[object, ...]:
    drawn = mx.random.normal(scores.shape, key=mx.random.key(0)).astype(scores.dtype)
    return drawn, mx.ones_like(per_expert_scale), top_k


# Two operations, because each has kernels of its own to be tried.
_ONE_LAUNCH = Operation("route", _in_one_launch, reference.route, _trial)
_TWO_LAUNCHES = Operation("route of a long prompt", _in_two_launches, reference.route, _trial)
