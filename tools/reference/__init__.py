"""The reference (transformers, torch, float32) made to say what it computes.

Needs the `parity` extra. Nothing here imports MLX, so it also runs where MLX is not installed.

The package has a recorder too, `parity/reference.py`. The two stay apart: a trace samples rows and
channels of one prompt, while fixtures keep whole caches, batches, and every logit of a generation
in float32 and float64, from which the margins follow; and each is a check of the other.
"""
