"""The operations of expert routing; the only ones the model may call that can have a Metal twin.

Each is defined in plain MLX in `reference`, and that definition is what runs.
"""

from mlx_diffusiongemma.kernels.reference import (
    combine_experts,
    geglu,
    sort_by_expert,
    top_k_experts,
)

__all__ = ["combine_experts", "geglu", "sort_by_expert", "top_k_experts"]
