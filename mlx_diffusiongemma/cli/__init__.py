"""The `dgemma-mlx` command."""
