"""The operations of `kernels` against hand numbers and loops that are too simple to be wrong."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import reference


def routed(tokens, experts, top_k, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(tokens, experts)).astype(np.float32)
    scale = rng.uniform(0.5, 2.0, experts).astype(np.float32)
    return scores, scale, *reference.top_k_experts(mx.array(scores), mx.array(scale), top_k)


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 5, 5), (7, 8, 2), (33, 128, 8)])
def test_top_k_experts_matches_the_loop(tokens, experts, top_k):
    scores, scale, chosen, weights = routed(tokens, experts, top_k)
    assert (chosen.dtype, weights.dtype) == (mx.uint32, mx.float32)
    for row in range(tokens):
        probs = np.exp(scores[row]) / np.exp(scores[row]).sum()
        best = sorted(range(experts), key=lambda e: (-probs[e], e))[:top_k]
        assert chosen[row].tolist() == best
        want = probs[best] / probs[best].sum() * scale[best]
        np.testing.assert_allclose(np.array(weights[row]), want, rtol=2e-6)


def test_of_equal_scores_the_lower_expert_comes_first():
    scores = mx.array([[1.0, 2.0, 2.0, 2.0, 0.0]])
    chosen, weights = reference.top_k_experts(scores, mx.ones((5,)), 2)
    assert chosen.tolist() == [[1, 2]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_sort_by_expert_orders_by_expert_then_token():
    experts = mx.array([[2, 0], [1, 2], [0, 2]], mx.uint32)
    tokens, ordered, inverse = reference.sort_by_expert(experts)
    assert ordered.tolist() == [0, 0, 1, 2, 2, 2]
    assert tokens.tolist() == [0, 2, 1, 0, 1, 2]
    assert inverse.tolist() == [[3, 0], [2, 4], [1, 5]]


def test_combine_experts_undoes_the_sorting():
    _, _, experts, weights = routed(20, 8, 3)
    tokens, ordered, inverse = reference.sort_by_expert(experts)
    outputs = ordered[:, None] * 100.0 + tokens[:, None] + mx.arange(2)  # says where it is from
    got = np.array(reference.combine_experts(outputs, inverse, weights))
    picked, share = np.array(experts), np.array(weights)
    for row in range(20):
        want = sum(share[row, k] * (picked[row, k] * 100.0 + row) for k in range(3))
        np.testing.assert_allclose(got[row], [want, want + share[row].sum()], rtol=1e-6)


def test_combine_experts_keeps_the_dtype_and_sums_in_float32():
    outputs = mx.array([[256.0], [1.0]]).astype(mx.bfloat16)
    got = reference.combine_experts(outputs, mx.array([[0, 1]], mx.uint32), mx.array([[1.0, 4.0]]))
    assert got.dtype == mx.bfloat16
    assert got.item() == 260.0


def normed(row, weight, eps=1e-6):
    return row / np.sqrt(np.mean(row * row) + eps) * weight


def test_add_attention_matches_the_loop():
    rng = np.random.default_rng(0)
    x, attended = rng.normal(size=(2, 2, 3, 16))
    weights = rng.uniform(0.5, 2, (3, 16))
    given = reference.AttentionWeights(*(mx.array(w, mx.float32) for w in weights))
    got = kernels.add_attention(
        mx.array(x, mx.float32), mx.array(attended, mx.float32), given, 1e-6
    )
    for place in np.ndindex(2, 3):
        added = x[place] + normed(attended[place], weights[0])
        want = [added, normed(added, weights[1])]
        want.append(normed(added, 1) * weights[2] / 4)  # 4 is the root of 16
        want.append(1 / np.sqrt(np.mean(added**2) + 1e-6))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(np.array(one)[place], other, atol=1e-5)


def test_add_feed_forward_matches_the_loop():
    rng = np.random.default_rng(1)
    x, dense = rng.normal(size=(2, 6, 16))
    outputs, weights = rng.normal(size=(12, 16)), rng.uniform(0.5, 2, (4, 16))
    slots, shares = rng.permutation(12).reshape(6, 2), rng.uniform(size=(6, 2))
    routing = kernels.route(mx.zeros((6, 4)), mx.ones((4,)), 2)._replace(
        inverse=mx.array(slots).astype(mx.uint32), weights=mx.array(shares, mx.float32)
    )
    norms = [mx.array(w, mx.float32) for w in (*weights, [0.5])]
    got = kernels.add_feed_forward(
        *(mx.array(array, mx.float32) for array in (x, dense, outputs)),
        routing,
        kernels.FeedForwardWeights(*norms),
        1e-6,
    )
    for row in range(6):
        experts = sum(w * outputs[slot] for w, slot in zip(shares[row], slots[row], strict=True))
        both = normed(dense[row], weights[0]) + normed(experts, weights[1])
        added = (x[row] + normed(both, weights[2])) * 0.5
        np.testing.assert_allclose(np.array(got.residual)[row], added, atol=1e-5)
        np.testing.assert_allclose(np.array(got.normed)[row], normed(added, weights[3]), atol=1e-5)


def test_prepare_heads_matches_the_loop():
    rng = np.random.default_rng(2)
    queries, keys, values = (rng.normal(size=(2, 3, count * 8)) for count in (4, 2, 2))
    norms, frequencies = rng.uniform(0.5, 2, (2, 8)), np.array([1, 5, 25, np.inf])
    weights = kernels.HeadWeights(*(mx.array(w, mx.float32) for w in (*norms, frequencies)))
    given = [mx.array(array, mx.float32) for array in (queries, keys, values)]
    got = kernels.prepare_heads(*given, weights, 7, 1e-6)
    assert got.queries.shape == (2, 4, 3, 8)
    for batch, row in np.ndindex(2, 3):
        angles = (7 + row) / frequencies
        turn = np.exp(1j * angles)
        for name, raw, weight in (("queries", queries, norms[0]), ("keys", keys, norms[1])):
            for head, numbers in enumerate(raw[batch, row].reshape(-1, 8)):
                flat = normed(numbers, weight)
                turned = (flat[:4] + 1j * flat[4:]) * turn
                want = np.r_[turned.real, turned.imag]
                one = np.array(getattr(got, name))[batch, head, row]
                np.testing.assert_allclose(one, want, atol=1e-5)
        for head, numbers in enumerate(values[batch, row].reshape(-1, 8)):
            one = np.array(got.values)[batch, head, row]
            np.testing.assert_allclose(one, normed(numbers, 1), atol=1e-5)
    shared = kernels.prepare_heads(given[0], given[1], None, weights, 7, 1e-6)
    from_keys = kernels.prepare_heads(given[0], given[1], given[1], weights, 7, 1e-6)
    assert mx.array_equal(shared.values, from_keys.values)


def test_geglu_is_the_tanh_gelu_times_up():
    gate, up = np.linspace(-6, 6, 50, dtype=np.float32), np.arange(50, dtype=np.float32)
    want = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    got = np.array(kernels.geglu(mx.array(gate), mx.array(up)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    halves = kernels.geglu_halves(mx.array(np.stack([np.r_[gate, up]] * 2)))
    assert np.array_equal(np.array(halves), np.stack([got, got]))


@pytest.mark.parametrize("rows", [1, 4, 5, 33])
@pytest.mark.parametrize("outputs", [1, 127, 128, 129, 300])
def test_linear_is_the_plain_product_whatever_the_sizes(rows, outputs):
    rng = np.random.default_rng(rows)
    x, weight = rng.normal(size=(2, rows, 24)), rng.normal(size=(outputs, 24))
    got = kernels.linear(mx.array(x, mx.float32), mx.array(weight, mx.float32))
    assert got.shape == (2, rows, outputs)
    np.testing.assert_allclose(np.array(got), x @ weight.T, atol=2e-5)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 2500])
def test_expectation_is_the_plain_product_whatever_the_sizes(size):
    rng = np.random.default_rng(size)
    probs, table = rng.dirichlet(np.ones(size), size=(1, 3)), rng.normal(size=(size, 7))
    got = kernels.expectation(mx.array(probs, mx.float32), mx.array(table, mx.float32))
    np.testing.assert_allclose(np.array(got), probs @ table, atol=2e-5)
