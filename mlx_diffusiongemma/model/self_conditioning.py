"""Self-conditioning: the step before tells this one what it believed.

previous_logits --> softmax --> @ embedding --> soft embedding --> gated MLP --+
canvas tokens ---> embedding -------------------------------------------------(+)--> norm
"""

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.model.layers import FeedForward, RMSNorm, norm_without_scale


class SelfConditioning(FeedForward):
    """Adds the signal of the step before to the canvas's embeddings; of the denoise pass only.

    Source: transformers `DiffusionGemmaSelfConditioning`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config.hidden_size, config.intermediate_size)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._eps = config.rms_norm_eps

    def __call__(self, embeddings: mx.array, soft: mx.array | None = None) -> mx.array:
        """float [B, L, hidden] and the soft embedding of the same shape, or None for zeros.

        The reference runs its MLP on zeros at the first step; every map in it takes zero to zero,
        so leaving it out is exact.
        """
        if soft is not None:
            embeddings = embeddings + super().__call__(self.pre_norm(soft))
        return norm_without_scale(embeddings, self._eps)


def soft_embedding(previous_logits: mx.array, embedding: nn.Module, dtype: mx.Dtype) -> mx.array:
    """Expected embedding under softmax(previous_logits), before the embedding scale.

    Args:
        previous_logits: float [B, L, V], temperature-scaled logits of the step before.
        embedding: `layers.Embedding`, or `nn.QuantizedEmbedding` in any mode.
        dtype: the model's compute dtype. Logits pass through it first, as in the reference, which
            stores them so between steps.

    Returns:
        float [B, L, hidden] in `dtype`.
    """
    probs = mx.softmax(previous_logits.astype(dtype).astype(mx.float32), axis=-1).astype(dtype)
    if not isinstance(embedding, nn.QuantizedEmbedding):
        return kernels.expectation(probs, embedding.weight)
    return mx.quantized_matmul(
        probs,
        embedding.weight,
        embedding.scales,
        embedding.biases,
        transpose=False,
        group_size=embedding.group_size,
        bits=embedding.bits,
        mode=embedding.mode,
    )
