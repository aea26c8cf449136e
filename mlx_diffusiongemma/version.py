"""The package version, readable without importing MLX."""

__version__ = "0.1.0"
