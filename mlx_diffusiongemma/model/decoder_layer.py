"""One transformer layer: attention, then a dense and a routed feed-forward side by side.

Attention:     x -- norm -- attention -- norm --(+ x)--> h
Feed-forward:  h -+- norm -- dense MLP ------------ norm -+
                  |                                      (+)-- norm --(+ h)-- * scalar --> out
                  +- norm -- experts (router(h)) -- norm -+
"""

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.model.attention import Attention
from mlx_diffusiongemma.model.cache import LayerCache
from mlx_diffusiongemma.model.experts import Experts, Router
from mlx_diffusiongemma.model.layers import FeedForward, RMSNorm


class DecoderLayer(nn.Module):
    """A layer with the weights of both passes; attribute names are the checkpoint's.

    Source: transformers `DiffusionGemmaEncoderTextLayer`, `DiffusionGemmaDecoderTextLayer`, which
    share every weight but `layer_scalar`: the one here is the denoise pass's.
    """

    def __init__(self, config: ModelConfig, layer: LayerConfig):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config, layer)
        self.mlp = FeedForward(hidden, config.intermediate_size)
        self.router = Router(config)
        self.experts = Experts(config)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.layer_scalar = mx.ones((1,))

    def prefill(self, x: mx.array, cache: LayerCache, offset: int, scalar: mx.array) -> mx.array:
        """Causal pass over float [B, C, hidden]; writes the cache. `scalar` is this pass's own."""
        attended = self.self_attn.prefill(self.input_layernorm(x), cache, offset)
        return self._feed_forward(x + self.post_attention_layernorm(attended)) * scalar

    def denoise(self, x: mx.array, cache: LayerCache, offset: int) -> mx.array:
        """Bidirectional pass over the canvas, float [B, L, hidden]; reads the cache."""
        attended = self.self_attn.denoise(self.input_layernorm(x), cache, offset)
        return self._feed_forward(x + self.post_attention_layernorm(attended)) * self.layer_scalar

    def _feed_forward(self, residual: mx.array) -> mx.array:
        dense = self.mlp(self.pre_feedforward_layernorm(residual))
        rows = residual.reshape(-1, residual.shape[-1])
        routed = self.experts(self.pre_feedforward_layernorm_2(rows), self.router(rows))
        both = self.post_feedforward_layernorm_1(dense) + self.post_feedforward_layernorm_2(
            routed.reshape(residual.shape)
        )
        return residual + self.post_feedforward_layernorm(both)
