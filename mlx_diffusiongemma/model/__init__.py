"""The network in pure MLX: arrays in, arrays out, the cache an argument."""

from mlx_diffusiongemma.model.cache import KVCache
from mlx_diffusiongemma.model.diffusion_gemma import DiffusionGemma

__all__ = ["DiffusionGemma", "KVCache"]
