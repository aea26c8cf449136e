"""The operations that the model may call and that can have a twin for one kind of device.

Each is defined in plain MLX in `reference`. Where there are Metal kernels for it, `dispatch`
decides whether they run; `dense` chooses between MLX's product and one for the CPU back-end.
"""

from mlx_diffusiongemma.kernels.dense import expectation, linear
from mlx_diffusiongemma.kernels.reference import Routing, combine_experts, geglu
from mlx_diffusiongemma.kernels.routing import route

__all__ = [
    "Routing",
    "combine_experts",
    "expectation",
    "geglu",
    "linear",
    "route",
]
