"""Stands in for mlx-vlm: what `bench compare` calls of it, without a network."""
