"""This runtime as a worker of `bench compare`: answers prompts and says what each cost.

usage: python -m mlx_diffusiongemma.bench.worker MODEL [DTYPE]

A request: prompt, mode ("diffusion" or "ar"), seed, max_tokens. A reply: token_ids, prompt_seconds,
seconds (all of it, the prompt included), cpu_seconds, passes, canvases (0 in mode "ar"),
peak_bytes. The first line says who answers: name, version, mlx, device, dtype, active_bytes.
"""

import sys
import time
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.bench.process import serve
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.runtime import Runtime, load
from mlx_diffusiongemma.version import __version__


def hello(runtime: Runtime) -> dict[str, Any]:
    """Who answers."""
    return {
        "name": "mlx-diffusiongemma",
        "version": __version__,
        "mlx": version("mlx"),
        "device": str(mx.default_device().type).rpartition(".")[2],
        "dtype": str(runtime.model.compute_dtype).rpartition(".")[2],
        "active_bytes": mx.get_active_memory(),
    }


def answer(runtime: Runtime, request: dict[str, Any]) -> dict[str, Any]:
    """One reply."""
    options = GenerationOptions(
        mode=request["mode"], seed=request["seed"], max_tokens=request["max_tokens"]
    )
    started, busy = time.perf_counter(), time.process_time()
    result = runtime.generate(request["prompt"], options)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    stats = result.stats
    # Reading the end token is a pass too, and is no token of the answer.
    end = result.finish_reason != "length"
    passes = stats.generated_tokens + end if stats.mode == "ar" else sum(stats.denoising_steps)
    return {
        "token_ids": result.token_ids,
        "prompt_seconds": stats.prefill_seconds,
        "seconds": seconds,
        "cpu_seconds": busy,
        "passes": passes,
        "canvases": stats.canvases,
        "peak_bytes": stats.peak_memory_bytes,
    }


def main() -> None:
    """Serve until standard input ends."""
    runtime = load(sys.argv[1], dtype=sys.argv[2] if len(sys.argv) > 2 else None, force=True)
    serve(hello(runtime), lambda request: answer(runtime, request))


if __name__ == "__main__":
    main()
