"""`dgemma-mlx info`: what a checkpoint is, from its headers alone."""


def info_command() -> None:
    """Describe MODEL."""
