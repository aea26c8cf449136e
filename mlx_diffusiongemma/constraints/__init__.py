"""What an answer may hold: constraints as values. The modules that follow them need MLX."""

from mlx_diffusiongemma.constraints.constraint import CanvasConstraint
from mlx_diffusiongemma.constraints.scaffold import open_scaffold

__all__ = ["CanvasConstraint", "open_scaffold"]
