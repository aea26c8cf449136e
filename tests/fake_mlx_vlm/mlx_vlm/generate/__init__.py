"""Holds `diffusion`."""
