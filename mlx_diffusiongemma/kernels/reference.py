"""What the kernels compute, in plain MLX. Slow and obvious on purpose: this is the definition.

Letters: T tokens, E experts, K experts per token, D hidden, F expert width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx


class Routing(NamedTuple):
    """Which experts the tokens go to. A pair is a token and one of its experts."""

    experts: mx.array  # uint32 [T, K], best first
    weights: mx.array  # float32 [T, K]
    tokens: mx.array  # uint32 [T * K], the token of each pair when pairs are sorted by expert
    sorted_experts: mx.array  # uint32 [T * K], ascending
    inverse: mx.array  # uint32 [T, K], where each pair went
    offsets: mx.array  # uint32 [E + 1], where each expert's pairs begin; T * K at the end


class HeadWeights(NamedTuple):
    """Norms [head_dim] of queries and keys, and wavelengths float32 [head_dim / 2] for RoPE."""

    query_norm: mx.array
    key_norm: mx.array
    frequencies: mx.array


class Heads(NamedTuple):
    """What attention takes: float [B, heads, L, head_dim]."""

    queries: mx.array
    keys: mx.array
    values: mx.array


class AttentionWeights(NamedTuple):
    """Weights [D] of the norms around `add_attention`."""

    attended_norm: mx.array
    dense_norm: mx.array
    router_scale: mx.array


class FeedForwardInputs(NamedTuple):
    """What `add_attention` makes: the new residual and two norms of it, float [..., D]."""

    residual: mx.array
    dense: mx.array
    router: mx.array
    inverse_rms: mx.array  # float32 [...], of the residual


class RowNorm(NamedTuple):
    """A norm that is still to be taken of rows, float [T, D]."""

    inverse_rms: mx.array  # float32 [T]
    weight: mx.array  # [D]


class FeedForwardWeights(NamedTuple):
    """Weights [D] of the norms around `add_feed_forward`, and the layer's scalar [1]."""

    dense_norm: mx.array
    routed_norm: mx.array
    both_norm: mx.array
    next_norm: mx.array
    scalar: mx.array


class Stream(NamedTuple):
    """What one layer hands to the next: the residual and its first norm, float [..., D]."""

    residual: mx.array
    normed: mx.array


def route(scores: mx.array, per_expert_scale: mx.array, top_k: int) -> Routing:
    """`top_k_experts`, `sort_by_expert` and `expert_offsets` of the same choices."""
    experts, weights = top_k_experts(scores, per_expert_scale, top_k)
    offsets = expert_offsets(experts, scores.shape[-1])
    return Routing(experts, weights, *sort_by_expert(experts), offsets)


def top_k_experts(
    scores: mx.array, per_expert_scale: mx.array, top_k: int
) -> tuple[mx.array, mx.array]:
    """Pick `top_k` experts for each token and weigh them.

    Args:
        scores: router output, float [T, E].
        per_expert_scale: learned factor, float [E].
        top_k: experts per token.

    Returns:
        experts uint32 [T, K], best first, ties to the lower id; weights float32 [T, K]: softmax
        over all E, renormalised over the chosen ones, times per_expert_scale.
    """
    probs = mx.softmax(scores.astype(mx.float32), axis=-1)
    experts = mx.argsort(-probs, axis=-1)[..., :top_k]
    weights = mx.take_along_axis(probs, experts, axis=-1)
    weights = weights / mx.sum(weights, axis=-1, keepdims=True)
    return experts.astype(mx.uint32), weights * per_expert_scale.astype(mx.float32)[experts]


def sort_by_expert(experts: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Order the T * K (token, expert) pairs by expert, pairs of one expert by token.

    Args:
        experts: uint32 [T, K].

    Returns:
        tokens uint32 [T * K], the token of each sorted pair; sorted_experts uint32 [T * K],
        ascending; inverse uint32 [T, K], where each pair went.
    """
    flat = experts.reshape(-1)
    order = mx.argsort(flat)
    inverse = mx.argsort(order).reshape(experts.shape)
    tokens = (order // experts.shape[-1]).astype(mx.uint32)
    return tokens, flat[order], inverse.astype(mx.uint32)


def expert_offsets(experts: mx.array, num_experts: int) -> mx.array:
    """uint32 [E + 1]: how many of the choices, uint32 [T, K], are of experts below each id."""
    chosen = experts.reshape(-1, 1) == mx.arange(num_experts, dtype=mx.uint32)
    counts = mx.sum(chosen.astype(mx.uint32), axis=0)
    return mx.concatenate([mx.zeros((1,), mx.uint32), mx.cumsum(counts)])


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """gelu(gate) * up, for float arrays of one shape.

    GELU is the tanh form (transformers' `gelu_pytorch_tanh`). Written out because the one of
    `mlx.nn` is compiled, which needs a C++ compiler on the CPU back-end.
    """
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return 0.5 * gate * (1 + mx.tanh(inner)) * up


def geglu_halves(gate_up: mx.array) -> mx.array:
    """`geglu` of the halves of the last axis, the gates first: float [..., 2 * F] -> [..., F]."""
    return geglu(*mx.split(gate_up, 2, axis=-1))


def combine_experts(outputs: mx.array, inverse: mx.array, weights: mx.array) -> mx.array:
    """Weighted sum of each token's expert outputs.

    Args:
        outputs: float [T * K, D], in the order of `sort_by_expert`.
        inverse: uint32 [T, K], from `sort_by_expert`.
        weights: float32 [T, K].

    Returns:
        float [T, D] in the dtype of `outputs`; the sum runs in float32.
    """
    picked = outputs[inverse].astype(mx.float32)
    return mx.sum(picked * weights[..., None], axis=-2).astype(outputs.dtype)


def add_attention(
    residual: mx.array, attended: mx.array, weights: AttentionWeights, eps: float
) -> FeedForwardInputs:
    """Add the norm of attention's output to the residual; norms of the sum for what follows.

    The router's is without weights, then times `router_scale` and 1 / sqrt(D).
    """
    added = residual + mx.fast.rms_norm(attended, weights.attended_norm, eps)
    router = mx.fast.rms_norm(added, None, eps) * weights.router_scale * added.shape[-1] ** -0.5
    return FeedForwardInputs(
        added,
        mx.fast.rms_norm(added, weights.dense_norm, eps),
        router,
        mx.rsqrt(mx.mean(mx.square(added.astype(mx.float32)), axis=-1) + eps),
    )


def gather_normed(rows: mx.array, norm: RowNorm, tokens: mx.array) -> mx.array:
    """The norm of rows, float [T, D], in the order of `tokens`, uint32 [P]: float [P, D]."""
    scaled = rows.astype(mx.float32) * norm.inverse_rms[:, None]
    normed = scaled * norm.weight.astype(mx.float32)
    return normed.astype(rows.dtype)[tokens]


def add_feed_forward(
    residual: mx.array,
    dense: mx.array,
    outputs: mx.array,
    routing: Routing,
    weights: FeedForwardWeights,
    eps: float,
) -> Stream:
    """Add the norms of both halves of the feed-forward, normalised together, to the residual.

    Args:
        residual: float [..., D].
        dense: float [..., D], output of the dense half.
        outputs: float [T * K, D], outputs of the experts in the order of `routing`.
        routing: where the T rows of `residual` went.
        weights: norms and the scalar that the sum is multiplied with.
        eps: of all norms.
    """
    routed = combine_experts(outputs, routing.inverse, routing.weights).reshape(residual.shape)
    both = mx.fast.rms_norm(dense, weights.dense_norm, eps) + mx.fast.rms_norm(
        routed, weights.routed_norm, eps
    )
    added = (residual + mx.fast.rms_norm(both, weights.both_norm, eps)) * weights.scalar
    return Stream(added, mx.fast.rms_norm(added, weights.next_norm, eps))


def prepare_heads(
    queries: mx.array,
    keys: mx.array,
    values: mx.array | None,
    weights: HeadWeights,
    offset: int,
    eps: float,
) -> Heads:
    """Normalise every head, rotate queries and keys by their position, and put heads outside.

    Args:
        queries: float [B, L, heads * head_dim].
        keys: float [B, L, key-value heads * head_dim].
        values: of the shape of `keys`; None where a layer takes its values from the keys.
        weights: norms of queries and keys, the norm of values has none; wavelengths.
        offset: position of the first row.
        eps: of the norms.
    """
    head_dim = weights.query_norm.shape[-1]
    raw_keys = mx.unflatten(keys, -1, (-1, head_dim))
    raw_values = raw_keys if values is None else mx.unflatten(values, -1, (-1, head_dim))
    raw_queries = mx.unflatten(queries, -1, (-1, head_dim))
    normed_queries = mx.fast.rms_norm(raw_queries, weights.query_norm, eps)
    normed_keys = mx.fast.rms_norm(raw_keys, weights.key_norm, eps)
    return Heads(
        rotate(normed_queries.swapaxes(1, 2), weights.frequencies, offset),
        rotate(normed_keys.swapaxes(1, 2), weights.frequencies, offset),
        mx.fast.rms_norm(raw_values, None, eps).swapaxes(1, 2),
    )


def rotate(x: mx.array, frequencies: mx.array, offset: int) -> mx.array:
    """RoPE of float [..., L, head_dim]; pairs are half a head apart."""
    return mx.fast.rope(
        x,
        x.shape[-1],
        traditional=False,
        base=None,
        scale=1.0,
        offset=offset,
        freqs=frequencies,
    )


def soft_norm(parts: Sequence[mx.array], scale: mx.array, weight: mx.array, eps: float) -> mx.array:
    """The norm of a soft embedding, float [..., D], that comes as the sum of `parts`.

    `scale` is the embedding's, a scalar of the same dtype.
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return mx.fast.rms_norm(total * scale, weight, eps)


def condition(
    embedded: mx.array, signal: mx.array | None, scale: mx.array, next_norm: mx.array, eps: float
) -> Stream:
    """What the first layer gets: the norm, without weights, of `embedded * scale + signal`.

    Args:
        embedded: float [..., D], rows of the embedding.
        signal: of the same shape, what self-conditioning adds; None for zeros.
        scale: the embedding's, a scalar of the same dtype.
        next_norm: float [D], weights of the first layer's norm.
        eps: of both norms.
    """
    x = embedded * scale
    x = mx.fast.rms_norm(x if signal is None else x + signal, None, eps)
    return Stream(x, mx.fast.rms_norm(x, next_norm, eps))
