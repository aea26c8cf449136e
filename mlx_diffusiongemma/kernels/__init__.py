"""The operations that the model may call and that can have a twin for one kind of device.

Each is defined in plain MLX in `reference`, `reference_experts`, `reference_sampler` or
`reference_sparse`. Where there are Metal kernels for it, `dispatch` decides whether they run;
`dense` chooses between MLX's product and one for the CPU back-end.
"""

from mlx_diffusiongemma.kernels.activation import geglu, geglu_halves
from mlx_diffusiongemma.kernels.certainty import accept_within_bound, logit_statistics, prepared
from mlx_diffusiongemma.kernels.conditioning import condition, probabilities, soft_norm
from mlx_diffusiongemma.kernels.dense import expectation, linear
from mlx_diffusiongemma.kernels.digest import Digest
from mlx_diffusiongemma.kernels.drawing import draw_tokens, noise_tokens
from mlx_diffusiongemma.kernels.expert_products import down_products, gated_products
from mlx_diffusiongemma.kernels.gathering import way_of as probe_products
from mlx_diffusiongemma.kernels.heads import prepare_heads
from mlx_diffusiongemma.kernels.reference import (
    AttentionWeights,
    FeedForwardWeights,
    Heads,
    HeadWeights,
    Routing,
    RowNorm,
    Stream,
)
from mlx_diffusiongemma.kernels.reference_experts import PackedExperts
from mlx_diffusiongemma.kernels.reference_sampler import (
    Belief,
    Logits,
    LogitStatistics,
    Renewed,
)
from mlx_diffusiongemma.kernels.reference_sparse import Survivors, SurvivorSum, Table
from mlx_diffusiongemma.kernels.renewal import renew
from mlx_diffusiongemma.kernels.residual import add_attention, add_feed_forward, gather_normed
from mlx_diffusiongemma.kernels.routing import route
from mlx_diffusiongemma.kernels.sparse import sum_survivors, survivors

__all__ = [
    "AttentionWeights",
    "Belief",
    "Digest",
    "FeedForwardWeights",
    "HeadWeights",
    "Heads",
    "LogitStatistics",
    "Logits",
    "PackedExperts",
    "Renewed",
    "Routing",
    "RowNorm",
    "Stream",
    "SurvivorSum",
    "Survivors",
    "Table",
    "accept_within_bound",
    "add_attention",
    "add_feed_forward",
    "condition",
    "down_products",
    "draw_tokens",
    "expectation",
    "gated_products",
    "gather_normed",
    "geglu",
    "geglu_halves",
    "linear",
    "logit_statistics",
    "noise_tokens",
    "prepare_heads",
    "prepared",
    "probabilities",
    "probe_products",
    "renew",
    "route",
    "soft_norm",
    "sum_survivors",
    "survivors",
]
