"""Measuring what the dial between speed and quality does, and counting what a step costs."""
