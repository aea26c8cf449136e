"""Router and experts: the routed half of a layer's feed-forward.

norm of h, scaled --> Router --> Routing: experts, weights, and all pairs sorted by expert
norm of h         --> Experts: rows in the order of the pairs --> gated gate_up --> down
"""

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.model.layers import Linear


class Router(nn.Module):
    """Scores the experts from a norm of the residual of its own (`kernels.add_attention`).

    Source: transformers `DiffusionGemmaTextRouter`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.proj = Linear(config.hidden_size, config.num_experts)
        self.scale = mx.ones((config.hidden_size,))
        self.per_expert_scale = mx.ones((config.num_experts,))
        self._top_k = config.top_k_experts

    def __call__(self, x: mx.array) -> kernels.Routing:
        """float [T, hidden], normalised and scaled -> the experts of T tokens, weighed, sorted."""
        return kernels.route(self.proj(x), self.per_expert_scale, self._top_k)


class ExpertLinear(nn.Module):
    """One linear map per expert, applied to the P pairs of a routing in the order of experts."""

    def __init__(self, input_dims: int, output_dims: int, num_experts: int):
        super().__init__()
        self.weight = mx.zeros((num_experts, output_dims, input_dims))

    def __call__(self, rows: mx.array, routing: kernels.Routing) -> mx.array:
        """float [P, input], by slot -> float [P, output]."""
        weight = self.weight.swapaxes(-1, -2)
        experts = routing.sorted_experts
        out = mx.gather_mm(rows[:, None], weight, rhs_indices=experts, sorted_indices=True)
        return out.squeeze(1)

    def gated(self, x: mx.array, routing: kernels.Routing, norm: kernels.RowNorm) -> mx.array:
        """gelu(gate) * up of every pair: float [T, input] -> float [P, output / 2], by slot."""
        rows = kernels.gather_normed(x, norm, routing.tokens)
        return kernels.geglu_halves(self(rows, routing))

    def to_quantized(self, group_size: int, bits: int, mode: str = "affine") -> nn.Module:
        """The module that `nn.quantize` puts in this one's place."""
        return QuantizedExpertLinear(self.weight, group_size, bits, mode)


class QuantizedExpertLinear(nn.Module):
    """`ExpertLinear` with packed weights."""

    def __init__(self, weight: mx.array, group_size: int, bits: int, mode: str):
        super().__init__()
        self._packing = (group_size, bits, mode)
        self.weight, self.scales, *biases = mx.quantize(weight, group_size, bits, mode=mode)
        self.biases = biases[0] if biases else None

    def __call__(self, rows: mx.array, routing: kernels.Routing) -> mx.array:
        """float [P, input], by slot -> float [P, output]."""
        return kernels.down_products(rows, routing, self._packed())

    def gated(self, x: mx.array, routing: kernels.Routing, norm: kernels.RowNorm) -> mx.array:
        """gelu(gate) * up of every pair: float [T, input] -> float [P, output / 2], by slot."""
        return kernels.gated_products(x, routing, self._packed(), norm)

    def probe(self, dtype: mx.Dtype) -> None:
        """Have MLX's product with these experts probed now; see `kernels.gathering`."""
        kernels.probe_products(self._packed(), dtype)

    def _packed(self) -> kernels.PackedExperts:
        return kernels.PackedExperts(self.weight, self.scales, self.biases, *self._packing)


class Experts(nn.Module):
    """The routed experts: down(gelu(gate(x)) * up(x)) for K experts of each token.

    Source: transformers `DiffusionGemmaTextExperts`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden, width, count = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.gate_up_proj = ExpertLinear(hidden, 2 * width, count)  # gate rows first
        self.down_proj = ExpertLinear(width, hidden, count)

    def __call__(self, x: mx.array, routing: kernels.Routing, norm: kernels.RowNorm) -> mx.array:
        """float [T, hidden] and where its rows go -> float [T * K, hidden], sorted by expert.

        `norm` is still to be taken of x: that happens as its rows are gathered.
        """
        return self.down_proj(self.gate_up_proj.gated(x, routing, norm), routing)


def probe_experts(model: nn.Module, dtype: mx.Dtype) -> None:
    """Probe MLX's product with every kind of packed experts in `model`, for rows of `dtype`.

    Kinds are few: the layers share theirs. GenerationError where MLX has no right product.
    """
    for module in model.modules():
        if isinstance(module, QuantizedExpertLinear):
            module.probe(dtype)
