"""Self-conditioning: the step before tells this one what it believed.

belief --> probabilities --> @ embedding --> soft embedding --> gated MLP --+
       --> digest, where it suffices ------^                                |
canvas tokens ---> embedding ----------------------------------------------(+)--> norms
"""

import math
from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.kernels import Belief, Logits, Stream
from mlx_diffusiongemma.model.layers import FeedForward, RMSNorm

# Tokens whose probabilities are made at a time: half of the released vocabulary, so that there is
# never a second array as large as the logits.
_TOKENS_AT_A_TIME = 131_072
# Rows that a digest does not suffice for: this share of a canvas is computed apart, always as many,
# so that shapes stay; where it takes more, all are.
_SHARE_APART = 1 / 8


class SelfConditioning(FeedForward):
    """Adds the signal of the step before to the canvas's embeddings; of the denoise pass only.

    Source: transformers `DiffusionGemmaSelfConditioning`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config.hidden_size, config.intermediate_size)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._eps = config.rms_norm_eps

    def __call__(  # type: ignore[override]
        self,
        embedded: mx.array,
        soft: Sequence[mx.array],
        scale: mx.array,
        next_norm: mx.array,
    ) -> Stream:
        """What the first layer gets.

        The reference runs its MLP on zeros at the first step; every map in it takes zero to zero,
        so leaving it out is exact.

        Args:
            embedded: float [B, L, hidden], rows of the embedding.
            soft: parts of the soft embedding, of the same shape; none at the first step.
            scale: what both are multiplied with.
            next_norm: float [hidden], weights of the first layer's norm.
        """
        signal = None
        if soft:
            normed = kernels.soft_norm(soft, scale, self.pre_norm.weight, self._eps)
            signal = super().__call__(normed)
        return kernels.condition(embedded, signal, scale, next_norm, self._eps)


def believed(logits: Logits) -> Belief:
    """What logits say, for self-conditioning; `kernels.logit_statistics` has the same number."""
    return Belief(logits, mx.logsumexp(logits.values(), axis=-1))


def soft_embedding(belief: Belief, embedding: nn.Module, dtype: mx.Dtype) -> list[mx.array]:
    """Expected embedding under what the step before believed, before the embedding scale.

    From its digest, if it has one, but for the rows that miss the certificate.

    Args:
        belief: of a canvas, [B, L, V]; its digest settled.
        embedding: `layers.Embedding`, or `nn.QuantizedEmbedding` in any mode.
        dtype: the model's compute dtype, which the probabilities are rounded to.

    Returns:
        float [B, L, hidden] in `dtype`, one array or more: their sum is meant.
    """
    digest, plain = belief.digest, belief._replace(digest=None)
    if digest is None:
        return _of_all_tokens(plain, embedding, dtype)
    if not digest.missed:
        return [digest.soft]
    missed, shape = digest.missed, digest.soft.shape
    most = math.ceil(belief.normaliser.size * _SHARE_APART)
    if len(missed) > most:
        return _of_all_tokens(plain, embedding, dtype)
    rows = mx.array([*missed, *[missed[0]] * (most - len(missed))])
    logits = belief.logits.raw.reshape(-1, belief.logits.raw.shape[-1])[rows]
    apart = Belief(belief.logits._replace(raw=logits), belief.normaliser.reshape(-1)[rows])
    parts = []
    for index, part in enumerate(_of_all_tokens(apart, embedding, dtype)):
        others = mx.zeros_like(digest.soft) if index else digest.soft
        places = mx.broadcast_to(rows[:, None], part.shape)
        merged = mx.put_along_axis(others.reshape(-1, shape[-1]), places, part, axis=0)
        parts.append(merged.reshape(shape))
    return parts


def _of_all_tokens(belief: Belief, embedding: nn.Module, dtype: mx.Dtype) -> list[mx.array]:
    size = belief.logits.raw.shape[-1]
    parts = []
    for first in range(0, size, _TOKENS_AT_A_TIME):
        count = min(_TOKENS_AT_A_TIME, size - first)
        rows = slice(first, first + count)
        probs = kernels.probabilities(belief, first, count, dtype)
        if isinstance(embedding, nn.QuantizedEmbedding):
            biases = embedding.biases
            part = mx.quantized_matmul(
                probs,
                embedding.weight[rows],
                embedding.scales[rows],
                None if biases is None else biases[rows],
                transpose=False,
                group_size=embedding.group_size,
                bits=embedding.bits,
                mode=embedding.mode,
            )
        else:
            part = kernels.expectation(probs, embedding.weight[rows])
        parts.append(part)
    return parts
