"""`python -m mlx_diffusiongemma` is the `dgemma-mlx` command."""

from mlx_diffusiongemma.cli.app import main

if __name__ == "__main__":
    main()
