"""Small layers that both passes share: norms, feed-forward, embedding, rotary frequencies."""

import math

import mlx.core as mx
import numpy as np
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import LayerConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale; the mean is taken in float32."""

    def __init__(self, dims: int, eps: float):
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Normalise the last axis of float [..., dims]."""
        return mx.fast.rms_norm(x, self.weight, self._eps)


def norm_without_scale(x: mx.array, eps: float) -> mx.array:
    """Root-mean-square norm of the last axis, with no weights."""
    return mx.fast.rms_norm(x, None, eps)


class Linear(nn.Linear):
    """x @ weight.T, without a bias."""

    def __init__(self, input_dims: int, output_dims: int):
        super().__init__(input_dims, output_dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """float [..., input_dims] -> float [..., output_dims]."""
        return kernels.linear(x, self.weight)

    def store_transposed(self) -> None:
        """Keep the same weight in memory as its transpose lies, which `kernels.linear` multiplies
        by on the CPU back-end: it then copies nothing, or whole rows."""
        self.weight = mx.contiguous(self.weight.T).T


class Embedding(nn.Embedding):
    """Token embedding, tied to the head."""

    def as_linear(self, x: mx.array) -> mx.array:
        """float [..., D] -> float [..., V], the score of every token."""
        return kernels.linear(x, self.weight)


class FeedForward(nn.Module):
    """Gated feed-forward: down(gelu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        """float [..., hidden_size] -> the same shape."""
        return self.down_proj(kernels.geglu(self.gate_proj(x), self.up_proj(x)))


def rotary_frequencies(layer: LayerConfig) -> mx.array:
    """Wavelengths for `mx.fast.rope`, float32 [head_dim / 2]; infinite where a pair keeps still.

    Proportional RoPE spaces the pairs that rotate as if all of head_dim did (transformers'
    `_compute_proportional_rope_parameters`); with every pair rotating it is the default RoPE.
    Made from numpy, so that the array belongs to no thread's stream.
    """
    frequencies = np.full(layer.head_dim // 2, np.inf, dtype=np.float32)
    exponents = np.arange(0, 2 * layer.rotary_pairs, 2, dtype=np.float32) / layer.head_dim
    frequencies[: layer.rotary_pairs] = np.float32(layer.rope_theta) ** exponents
    return mx.array(frequencies)


def embedding_scale(hidden_size: int, dtype: mx.Dtype) -> mx.array:
    """sqrt(hidden_size) rounded to `dtype`, as the reference rounds it."""
    return mx.array(math.sqrt(hidden_size), dtype)
