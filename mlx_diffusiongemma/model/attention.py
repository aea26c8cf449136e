"""Attention of one layer, for both passes.

prefill   x [B, C, hidden] --> q, k, v --> append k, v to the cache --> causal attention
denoise   x [B, L, hidden] --> q, k, v --> cache | canvas           --> everyone sees everyone
"""

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.kernels import Heads, HeadWeights
from mlx_diffusiongemma.model.cache import LayerCache
from mlx_diffusiongemma.model.layers import Linear, RMSNorm, rotary_frequencies


class Attention(nn.Module):
    """Grouped-query attention with normalised heads and a scale of 1.

    Source: transformers `DiffusionGemmaEncoderTextAttention`, `DiffusionGemmaDecoderTextAttention`.
    """

    def __init__(self, config: ModelConfig, layer: LayerConfig):
        super().__init__()
        self._layer = layer
        self._window = config.sliding_window if layer.is_sliding else None
        self._eps = config.rms_norm_eps
        self._frequencies = rotary_frequencies(layer)
        query_dims = config.num_attention_heads * layer.head_dim
        key_dims = layer.num_key_value_heads * layer.head_dim
        self.q_proj = Linear(config.hidden_size, query_dims)
        self.k_proj = Linear(config.hidden_size, key_dims)
        if not layer.shares_key_and_value:
            self.v_proj = Linear(config.hidden_size, key_dims)
        self.o_proj = Linear(query_dims, config.hidden_size)
        self.q_norm = RMSNorm(layer.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(layer.head_dim, config.rms_norm_eps)

    def prefill(self, x: mx.array, cache: LayerCache, offset: int) -> mx.array:
        """Attend causally, within the window where there is one, and add x to the cache."""
        queries, keys, values = self._project(x, offset)
        keys, values = cache.append(keys, values)
        mask = prefill_mask(x.shape[1], keys.shape[2], self._window)
        return self._attend(queries, keys, values, mask)

    def denoise(self, x: mx.array, cache: LayerCache, offset: int) -> mx.array:
        """Attend to what the cache stores and to the whole canvas, the same for every row."""
        queries, keys, values = self._project(x, offset)
        return self._attend(queries, *cache.with_canvas(keys, values), None)

    def _project(self, x: mx.array, offset: int) -> Heads:
        values = None if self._layer.shares_key_and_value else self.v_proj(x)
        weights = HeadWeights(self.q_norm.weight, self.k_norm.weight, self._frequencies)
        return kernels.prepare_heads(
            self.q_proj(x), self.k_proj(x), values, weights, offset, self._eps
        )

    def _attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None
    ) -> mx.array:
        output = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)
        return self.o_proj(output.swapaxes(1, 2).flatten(-2))


def prefill_mask(queries: int, keys: int, window: int | None) -> mx.array | str | None:
    """Who sees whom while a chunk of the prompt is read; its last key is its last query.

    Returns None when the only query sees every key, "causal" when the window cannot bite, else
    bool [queries, keys], True where query q sees key k: the window counts the query itself.
    """
    if window is None or keys <= window:
        return None if queries == 1 else "causal"
    query = mx.arange(keys - queries, keys)[:, None]
    key = mx.arange(keys)[None]
    return (key <= query) & (key > query - window)
