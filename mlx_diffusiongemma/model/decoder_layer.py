"""One transformer layer: attention, then a dense and a routed feed-forward side by side.

Attention:     x -- norm -- attention -- norm --(+ x)--> h
Feed-forward:  h -+- norm -- dense MLP ------------ norm -+
                  |                                      (+)-- norm --(+ h)-- * scalar --> out
                  +- norm -- experts (router(h)) -- norm -+

A layer gets its first norm from the one before and hands on the next one's, so that `kernels` can
take each sum and its norms together.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.kernels import AttentionWeights, FeedForwardWeights, RowNorm, Stream
from mlx_diffusiongemma.model.attention import Attention, Piece
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
        self._eps = eps

    def prefill(
        self, x: Stream, pieces: Sequence[Piece], scalar: mx.array, next_norm: mx.array
    ) -> Stream:
        """Causal pass over float [B, C, hidden]; writes the caches. `scalar` is this pass's own.

        `next_norm` is the weight of the norm that follows: the next layer's first, or the last.
        """
        attended = self.self_attn.prefill(x.normed, pieces)
        return self._feed_forward(x.residual, attended, scalar, next_norm)

    def denoise(self, x: Stream, pieces: Sequence[Piece], next_norm: mx.array) -> Stream:
        """Bidirectional pass over each canvas, float [B, L, hidden]; reads the caches."""
        attended = self.self_attn.denoise(x.normed, pieces)
        return self._feed_forward(x.residual, attended, self.layer_scalar, next_norm)

    def _feed_forward(
        self, residual: mx.array, attended: mx.array, scalar: mx.array, next_norm: mx.array
    ) -> Stream:
        before = AttentionWeights(
            self.post_attention_layernorm.weight,
            self.pre_feedforward_layernorm.weight,
            self.router.scale,
        )
        after = FeedForwardWeights(
            self.post_feedforward_layernorm_1.weight,
            self.post_feedforward_layernorm_2.weight,
            self.post_feedforward_layernorm.weight,
            next_norm,
            scalar,
        )
        inputs = kernels.add_attention(residual, attended, before, self._eps)
        dense = self.mlp(inputs.dense)
        routing = self.router(_rows(inputs.router))
        norm = RowNorm(inputs.inverse_rms.reshape(-1), self.pre_feedforward_layernorm_2.weight)
        outputs = self.experts(_rows(inputs.residual), routing, norm)
        return kernels.add_feed_forward(inputs.residual, dense, outputs, routing, after, self._eps)


def _rows(x: mx.array) -> mx.array:
    return x.reshape(-1, x.shape[-1])
