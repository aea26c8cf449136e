"""One measurement of mlx-vlm, run by an interpreter that has it; prints JSON for `step_time.py`.

usage: worker_mlx_vlm.py CHECKPOINT PROMPT_TOKENS STEPS

Its own loop runs with its entropy-bound sampler over whole canvases, on float32 weights. Only the
tokenizer is a stand-in, since nothing is decoded.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_vlm.generate import diffusion  # type: ignore[attr-defined]
from mlx_vlm.models.diffusion_gemma import Model, ModelConfig


class _NoTokenizer:
    """Takes tokens and says nothing."""

    last_segment = ""

    def stopping_criteria(self, token: int) -> bool:
        return False

    def add_token(self, token: int, skip_special_token_ids: object = None) -> None:
        pass

    def finalize(self) -> None:
        pass


def load(checkpoint: Path) -> Model:
    """The text side of the checkpoint in float32."""
    values = json.loads((checkpoint / "config.json").read_text())
    values["vision_config"] = None
    # Without stop thresholds its loop takes every step, as ours is told to.
    values["generation_config"] = {
        "t_min": 0.4,
        "t_max": 0.8,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    }
    model = Model(ModelConfig.from_dict(values))
    model.config.generation_config = values["generation_config"]
    weights = model.sanitize(mx.load(str(checkpoint / "model.safetensors")))
    wanted = {name: array.astype(mx.float32) for name, array in weights.items()}
    model.load_weights(
        [(name, array) for name, array in wanted.items() if "vision" not in name], strict=False
    )
    mx.eval(model.parameters())
    return model


def measure(checkpoint: Path, prompt_tokens: int, steps: int) -> dict[str, float]:
    """Seconds of prefill, seconds and CPU seconds per denoising step, peak bytes."""
    model = load(checkpoint)
    vocab_size = model.config.text_config.vocab_size
    tokens = mx.random.randint(3, vocab_size, (1, prompt_tokens), key=mx.random.key(1))
    mx.eval(tokens)
    stand_in = _NoTokenizer()
    diffusion.make_streaming_detokenizer = lambda processor: stand_in
    mx.reset_peak_memory()

    started, busy = time.perf_counter(), time.process_time()
    results = diffusion.stream_diffusion_generate(
        model,
        stand_in,
        stand_in,
        tokens,
        None,
        None,
        max_tokens=model.config.canvas_length,
        skip_special_token_ids=[],
        temperature=1.0,  # draws its candidates, as the reference does
        max_denoising_steps=steps,
        diffusion_sampler="entropy-bound",
        diffusion_full_canvas=True,
        prefill_step_size=2048,
    )
    last = list(results)[-1]
    finished, busy = time.perf_counter(), time.process_time() - busy
    assert last.diffusion_denoising_steps == steps
    prefill = last.prompt_tokens / last.prompt_tps
    return {
        "prefill_seconds": prefill,
        "step_seconds": (finished - started - prefill) / steps,
        # Its loop tells wall time alone: CPU time is shared out as the wall time was.
        "step_cpu_seconds": busy * (1 - prefill / (finished - started)) / steps,
        "peak_bytes": mx.get_peak_memory(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
