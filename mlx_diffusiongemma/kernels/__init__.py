"""The operations that the model may call and that can have a twin for one kind of device.

Expert routing is defined in plain MLX in `reference`, and that definition is what runs; `dense`
chooses between MLX's product and one that suits the CPU back-end.
"""

from mlx_diffusiongemma.kernels.dense import expectation, linear
from mlx_diffusiongemma.kernels.reference import (
    combine_experts,
    geglu,
    sort_by_expert,
    top_k_experts,
)

__all__ = [
    "combine_experts",
    "expectation",
    "geglu",
    "linear",
    "sort_by_expert",
    "top_k_experts",
]
