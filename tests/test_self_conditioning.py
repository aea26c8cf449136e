"""What a step tells the next one: in parts as in one, and not rounded."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx import nn
from tolerances import PARITY

from mlx_diffusiongemma.kernels import Belief, Logits
from mlx_diffusiongemma.model import self_conditioning
from mlx_diffusiongemma.model.layers import Embedding
from mlx_diffusiongemma.model.self_conditioning import believed, soft_embedding

V, D = 96, 64


def embedding(packing: str) -> nn.Module:
    table = Embedding(V, D)
    table.weight = mx.array(np.random.default_rng(0).normal(size=(V, D)), mx.float32)
    if packing == "none":
        return table
    group_size, bits = {"affine": (64, 8), "mxfp8": (32, 8)}[packing]
    return table.to_quantized(group_size=group_size, bits=bits, mode=packing)


def belief(dtype=mx.float32) -> Belief:
    raw = mx.array(np.random.default_rng(1).normal(size=(1, 5, V)) * 8, mx.float32)
    return believed(Logits(raw.astype(dtype), cap=30.0, temperature=0.6))


def expected(given: Belief, table: nn.Module) -> np.ndarray:
    values = np.array(given.logits.values(), dtype=np.float64)
    probs = np.exp(values - values.max(axis=-1, keepdims=True))
    rows = np.array(table(mx.arange(V)).astype(mx.float32), dtype=np.float64)
    return probs / probs.sum(axis=-1, keepdims=True) @ rows


@pytest.mark.parametrize("packing", ["none", "affine", "mxfp8"])
@pytest.mark.parametrize(("at_a_time", "parts"), [(V, 1), (48, 2), (40, 3)])
def test_parts_add_up_to_the_mean_embedding(monkeypatch, packing, at_a_time, parts):
    monkeypatch.setattr(self_conditioning, "_TOKENS_AT_A_TIME", at_a_time)
    table = embedding(packing)
    got = soft_embedding(belief(), table, mx.float32)
    assert len(got) == parts
    np.testing.assert_allclose(np.array(sum(got)), expected(belief(), table), atol=1e-5)


@pytest.mark.parametrize("at_a_time", [48, 31])
def test_a_step_in_parts_is_the_step_in_one(monkeypatch, tmp_path, at_a_time):
    values = tiny.config_values()
    model = tiny.load(tmp_path, values, tiny.random_tensors(values))
    cache = model.make_cache()
    model.prefill(mx.array([[5, 6, 7]]), cache)
    canvas = mx.array([[4, 3, 2, 1, 9, 8, 7, 6]])
    first = believed(model.predict(canvas, cache, None).at(0.7))
    want = np.array(model.predict(canvas, cache, first).values())
    monkeypatch.setattr(self_conditioning, "_TOKENS_AT_A_TIME", at_a_time)
    got = np.array(model.predict(canvas, cache, first).values())
    np.testing.assert_allclose(got, want, atol=PARITY["logits"])
    alone = np.array(model.denoise(canvas, cache, first.logits.values()))
    np.testing.assert_allclose(alone, want, atol=PARITY["logits"])


def test_logits_are_not_rounded_to_the_compute_dtype_between_steps():
    """32 and 32.1 are one number in bfloat16; temperature-scaled logits are as large as that."""
    table = embedding("none")
    raw = mx.full((1, 1, V), -100.0)
    raw[0, 0, :2] = mx.array([32.0, 32.1])
    given = believed(Logits(raw))
    (got,) = soft_embedding(given, table, mx.bfloat16)
    share = 1 / (1 + np.exp(-0.1))
    want = (1 - share) * np.array(table.weight[0]) + share * np.array(table.weight[1])
    even = np.array(table.weight[:2]).mean(axis=0)
    error = np.abs(np.array(got.astype(mx.float32))[0, 0] - want).max()
    assert error < np.abs(want - even).max() / 4
