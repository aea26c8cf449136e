"""Where the `dgemma-mlx` command begins, and `python -m mlx_diffusiongemma`."""

from mlx_diffusiongemma.cli.interrupts import ending_at_once


def main() -> None:
    """Run the command line."""
    with ending_at_once():
        from mlx_diffusiongemma.cli.app import main as run
    run()


if __name__ == "__main__":
    main()
