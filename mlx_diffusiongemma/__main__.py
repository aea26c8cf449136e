"""Where the `dgemma-mlx` command begins, and `python -m mlx_diffusiongemma`."""


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported exits 130, too."""
    try:
        from mlx_diffusiongemma.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
