"""Turn released weights into MLX checkpoints."""
