"""Count launches and bytes of one denoising step, of this runtime and of mlx-vlm beside it.

    python benchmarks/ledger.py                         this runtime
    python benchmarks/ledger.py --peer PYTHON           also mlx-vlm, by an interpreter that has it

It is `dgemma-mlx bench ledger`, with mlx-vlm counted by itself where it is installed here.
"""

import importlib.util
import sys

from mlx_diffusiongemma.cli.app import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not any(one.startswith("--peer") for one in arguments) and importlib.util.find_spec(
        "mlx_vlm"
    ):
        arguments += ["--peer", sys.executable]
    sys.argv[1:] = ["bench", "ledger", *arguments]
    main()
