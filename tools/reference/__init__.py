"""The reference (transformers, torch, float32) made to say what it computes.

Needs the `parity` extra. Nothing here imports MLX, so it also runs where MLX is not installed.
"""
