"""The products with packed experts in plain MLX: what the kernels for them compute.

Letters: R rows, P pairs of a row and an expert, E experts, K inputs, N outputs, F expert width.
"""

from typing import NamedTuple

import mlx.core as mx

from mlx_diffusiongemma.kernels.reference import Routing, geglu_halves


class PackedExperts(NamedTuple):
    """One linear map for each expert, packed as `mx.quantize` does."""

    weight: mx.array  # uint32 [E, N, K * bits / 32]
    scales: mx.array  # [E, N, K / group_size]
    biases: mx.array | None  # like `scales`; None in the modes that have none
    group_size: int
    bits: int
    mode: str


def products(
    rows: mx.array, experts: mx.array, packed: PackedExperts, *, is_sorted: bool = True
) -> mx.array:
    """float [P, K], the expert of each row, uint32 [P] -> float [P, N].

    `is_sorted` tells MLX that the experts ascend, which they do; without it rows go one by one.
    """
    out = mx.gather_qmm(
        rows[:, None],
        packed.weight,
        packed.scales,
        packed.biases,
        rhs_indices=experts,
        transpose=True,
        group_size=packed.group_size,
        bits=packed.bits,
        mode=packed.mode,
        sorted_indices=is_sorted,
    )
    return out.squeeze(1)


def gated_products(x: mx.array, routing: Routing, packed: PackedExperts) -> mx.array:
    """gelu(gate) * up of every pair: float [R, K] -> float [P, F], sorted by expert.

    `packed` has the F gates of an expert first, then its ups.
    """
    return geglu_halves(products(x[routing.tokens], routing.sorted_experts, packed))


def down_products(hidden: mx.array, routing: Routing, packed: PackedExperts) -> mx.array:
    """What experts make of the pairs: float [P, K] -> float [P, N], both sorted by expert."""
    return products(hidden, routing.sorted_experts, packed)
