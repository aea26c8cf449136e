"""Turn released weights into MLX checkpoints, once, in bounded memory.

from mlx_diffusiongemma.convert.conversion import convert_checkpoint

convert_checkpoint("google/diffusiongemma-26B-A4B-it", "diffusiongemma", "mixed-4-8")
"""
