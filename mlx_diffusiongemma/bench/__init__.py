"""Measuring what the dial between speed and quality does, on tasks whose answers can be checked."""
