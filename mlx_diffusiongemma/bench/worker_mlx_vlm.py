"""mlx-vlm as a worker, run by an interpreter that has it and need not have this package.

usage: PYTHON worker_mlx_vlm.py FOLDER DTYPE

A request: prompt_ids, eos_token_ids, seed, max_tokens, sampler and, if it is to take that many
steps and never stop early, fixed_steps. The sampler is "entropy-bound", as the checkpoint says,
over whole canvases, or "default", what mlx-vlm does when nothing is asked for. A reply is that of
`worker.py`. Its own loop runs; only the tokenizer is a stand-in, so nothing is decoded.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.generate import diffusion  # type: ignore
from mlx_vlm.utils import load_model  # type: ignore

_CHUNK = 2048  # tokens of the prompt at a time
_FIXED = {"t_min": 0.4, "t_max": 0.8}  # without stop thresholds its loop takes every step


class EndTokens:
    """Which tokens end an answer."""

    def __init__(self, token_ids: list[int]):
        self._token_ids = set(token_ids)

    def __call__(self, token: int) -> bool:
        """Whether an answer ends with this token."""
        return token in self._token_ids

    def add_eos_token_ids(self, token_ids: list[int]) -> None:
        """Those of the checkpoint, which the request names already."""
        self._token_ids.update(token_ids)


class Tokens:
    """In place of a tokenizer: collects the tokens and says nothing."""

    last_segment = ""

    def __init__(self, eos_token_ids: list[int]):
        self.ids: list[int] = []
        self.stopping_criteria = EndTokens(eos_token_ids)

    def add_token(self, token: int, skip_special_token_ids: object = None) -> None:
        """One more token of the answer."""
        self.ids.append(token)

    def finalize(self) -> None:
        """The answer has ended."""


def load(folder: Path, dtype: str) -> Any:
    """The model, its floats cast to `dtype`."""
    model = load_model(folder)
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model


def hello(model: Any, dtype: str) -> dict[str, Any]:
    """Who answers."""
    return {
        "name": "mlx-vlm",
        "version": version("mlx-vlm"),
        "mlx": version("mlx"),
        "device": str(mx.default_device().type).rpartition(".")[2],
        "dtype": dtype,
        "active_bytes": mx.get_active_memory(),
    }


def settings(request: dict[str, Any]) -> dict[str, Any]:
    """What its loop is asked for."""
    if request["sampler"] == "default":
        return {}
    return {
        "temperature": 1.0,  # draws its candidates, as the reference does
        "diffusion_sampler": "entropy-bound",
        "diffusion_full_canvas": True,
        "max_denoising_steps": request.get("fixed_steps"),
    }


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One reply."""
    tokens = Tokens(request["eos_token_ids"])
    diffusion.make_streaming_detokenizer = lambda processor: tokens
    own = model.config.generation_config
    if request.get("fixed_steps"):
        model.config.generation_config = _FIXED
    prompt = mx.array([request["prompt_ids"]], mx.int32)
    mx.eval(prompt)
    mx.random.seed(request["seed"])  # where mlx-vlm draws from
    mx.reset_peak_memory()
    started, busy = time.perf_counter(), time.process_time()
    canvases = 0
    for part in diffusion.stream_diffusion_generate(
        model,
        tokens,
        tokens,
        prompt,
        None,
        None,
        max_tokens=request["max_tokens"],
        skip_special_token_ids=[],
        prefill_step_size=_CHUNK,
        **settings(request),
    ):
        last = part
        canvases += part.diffusion_block_complete
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    model.config.generation_config = own
    return {
        "token_ids": tokens.ids,
        "prompt_seconds": last.prompt_tokens / last.prompt_tps,
        "seconds": seconds,
        "cpu_seconds": busy,
        "passes": last.diffusion_denoising_steps,
        "canvases": canvases,
        "peak_bytes": mx.get_peak_memory(),
    }


def say(message: dict[str, Any]) -> None:
    """Write one line to whoever asked."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until standard input ends."""
    model = load(Path(sys.argv[1]), sys.argv[2])
    say(hello(model, sys.argv[2]))
    for line in sys.stdin:
        say(answer(model, json.loads(line)))


if __name__ == "__main__":
    main()
