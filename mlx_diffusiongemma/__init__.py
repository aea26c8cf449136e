"""Run DiffusionGemma locally on Apple silicon with MLX."""
