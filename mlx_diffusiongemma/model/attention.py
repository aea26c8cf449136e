"""Attention of one layer, for both passes.

prefill   x [B, C, hidden] --> q, k, v --> append k, v to the cache --> causal attention
denoise   x [B, L, hidden] --> q, k, v --> cache | canvas           --> everyone sees everyone

The tokens of several sequences, each with a cache of its own, may lie one behind the other in x:
everything but attention itself is done for all of them at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.kernels import Heads, HeadWeights
from mlx_diffusiongemma.model.cache import LayerCache
from mlx_diffusiongemma.model.layers import Linear, RMSNorm, rotary_frequencies

_FEW = 8  # queries that MLX has a fused kernel for at any head size


class Piece(NamedTuple):
    """The tokens of one sequence in a pass.

    Attributes:
        length: how many there are.
        cache: the sequence's keys and values in this layer.
        offset: the position of the first of them.
    """

    length: int
    cache: LayerCache
    offset: int


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

    def prefill(self, x: mx.array, pieces: Sequence[Piece]) -> mx.array:
        """Attend causally, within the window where there is one, and add x to the caches."""
        return self._attend(x, pieces, self._attend_causally)

    def denoise(self, x: mx.array, pieces: Sequence[Piece]) -> mx.array:
        """Attend to what the cache stores and to the whole canvas, the same for every row."""
        return self._attend(x, pieces, self._attend_to_all)

    def _attend(
        self, x: mx.array, pieces: Sequence[Piece], attend: Callable[[Heads, LayerCache], mx.array]
    ) -> mx.array:
        """`attend` for each piece of x; float [B, tokens of all pieces, hidden]."""
        values = None if self._layer.shares_key_and_value else self.v_proj(x)
        queries, keys = self.q_proj(x), self.k_proj(x)
        weights = HeadWeights(self.q_norm.weight, self.k_norm.weight, self._frequencies)
        outputs, start = [], 0
        for piece in pieces:
            rows = slice(start, start := start + piece.length)
            heads = kernels.prepare_heads(
                _cut(queries, rows),
                _cut(keys, rows),
                None if values is None else _cut(values, rows),
                weights,
                piece.offset,
                self._eps,
            )
            outputs.append(attend(heads, piece.cache).swapaxes(1, 2).flatten(-2))
        return self.o_proj(outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1))

    def _attend_causally(self, heads: Heads, cache: LayerCache) -> mx.array:
        keys, values = cache.append(heads.keys, heads.values)
        mask = prefill_mask(heads.queries.shape[2], keys.shape[2], self._window)
        return _attention(heads.queries, keys, values, mask)

    def _attend_to_all(self, heads: Heads, cache: LayerCache) -> mx.array:
        return _attention(heads.queries, *cache.with_canvas(heads.keys, heads.values), None)


def _cut(x: mx.array, rows: slice) -> mx.array:
    """Some rows of [B, T, ...]; x itself, not another node of the graph, where that is all."""
    return x if rows == slice(0, x.shape[1]) else x[:, rows]


def _attention(
    queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None
) -> mx.array:
    if mask is None and queries.shape[2] > _FEW:
        return _attention_to_all(queries, keys, values)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)


def _attention_to_all(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """Without a mask and for more queries than MLX's fused kernels take at these head sizes.

    It would do the same in these steps, after multiplying every query by the scale, which is 1.
    """
    batch, kv_heads, _, size = keys.shape
    of_each_kv_head = queries.reshape(batch, kv_heads, -1, size)
    weights = mx.softmax(of_each_kv_head @ keys.swapaxes(-1, -2), axis=-1, precise=True)
    return (weights @ values).reshape(queries.shape)


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
