"""What an answer may hold: constraints on whole canvases, found exactly by dynamic programming."""

from mlx_diffusiongemma.constraints.canvas_rules import CanvasRules, Reading
from mlx_diffusiongemma.constraints.constraint import CanvasConstraint
from mlx_diffusiongemma.constraints.progress import ConstrainedText
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary

__all__ = ["CanvasConstraint", "CanvasRules", "ConstrainedText", "Reading", "Vocabulary"]
