"""Turn released weights into MLX checkpoints, once, in bounded memory.

convert_checkpoint("google/diffusiongemma-26B-A4B-it", "diffusiongemma", "mixed-4-8")
"""

from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.convert.report import ConversionReport
from mlx_diffusiongemma.errors import ConversionError
from mlx_diffusiongemma.recipes import RECIPES

__all__ = ["RECIPES", "ConversionError", "ConversionReport", "convert_checkpoint"]
