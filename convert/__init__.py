"""Turn released weights into MLX checkpoints, once, in bounded memory.

convert_checkpoint("google/diffusiongemma-26B-A4B-it", "diffusiongemma", "mixed-4-8")

plan = plan_conversion(folder, find_recipe("mixed-4-8"))    headers only, nothing is written
print(describe_plan(plan))
"""

from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.convert.plan import plan as plan_conversion
from mlx_diffusiongemma.convert.records import ConversionPlan
from mlx_diffusiongemma.convert.report import ConversionReport
from mlx_diffusiongemma.convert.table import describe_plan, describe_report
from mlx_diffusiongemma.errors import ConversionError
from mlx_diffusiongemma.recipes import RECIPES, Recipe, find_recipe

__all__ = [
    "RECIPES",
    "ConversionError",
    "ConversionPlan",
    "ConversionReport",
    "Recipe",
    "convert_checkpoint",
    "describe_plan",
    "describe_report",
    "find_recipe",
    "plan_conversion",
]
