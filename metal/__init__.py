"""Metal sources of the kernels, as package data."""
