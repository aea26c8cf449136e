"""One measurement of this runtime, in a process of its own; prints JSON for `step_time.py`.

usage: worker.py CHECKPOINT PROMPT_TOKENS STEPS
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx

from mlx_diffusiongemma import SamplerSettings, SeededDraws, load_model
from mlx_diffusiongemma.denoising import denoising_loop
from mlx_diffusiongemma.passes import carried_out

# Never confident, so that every run takes all its steps.
NEVER = 1e-30


def measure(checkpoint: Path, prompt_tokens: int, steps: int) -> dict[str, float]:
    """Seconds of prefill, seconds and CPU seconds per denoising step, peak bytes."""
    model = load_model(checkpoint, dtype="float32")
    vocab_size, length = model.config.vocab_size, model.config.canvas_length
    tokens = mx.random.randint(3, vocab_size, (1, prompt_tokens), key=mx.random.key(1))
    settings = SamplerSettings(max_denoising_steps=steps, confidence_threshold=NEVER)
    mx.eval(tokens)
    mx.reset_peak_memory()

    started = time.perf_counter()
    cache = model.make_cache()
    model.prefill(tokens, cache)
    prefilled, busy = time.perf_counter(), time.process_time()
    loop = denoising_loop(SeededDraws(0), settings, canvas_length=length, vocab_size=vocab_size)
    passes = carried_out(
        loop,
        lambda asked: model.predict(asked.canvas, cache, asked.belief),
        lambda tokens: None,  # one canvas reads nothing
    )
    count = sum(1 for _ in passes)
    finished, busy = time.perf_counter(), time.process_time() - busy
    assert count == steps
    return {
        "prefill_seconds": prefilled - started,
        "step_seconds": (finished - prefilled) / steps,
        "step_cpu_seconds": busy / steps,
        "peak_bytes": mx.get_peak_memory(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
