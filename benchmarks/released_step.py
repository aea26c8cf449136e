"""Step time, prefill and tokens per second at the released model's dimensions, nothing downloaded.

    python benchmarks/released_step.py --recipe mixed-4-8      30 layers, 15 GB of random weights
    python benchmarks/released_step.py --recipe 8bit --json FILE
    python benchmarks/released_step.py --small                 tiny dimensions, anywhere

Weights are random and packed, made on the device itself; their values decide nothing here, since
every canvas takes a fixed number of steps. Medians, after a run that compiles what has to be.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from synthetic_packed import random_model

from mlx_diffusiongemma import SamplerSettings, SeededDraws, TokenSettings
from mlx_diffusiongemma.autoregressive import token_loop
from mlx_diffusiongemma.bench.machine import describe_machine
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.denoising import denoise
from mlx_diffusiongemma.device_report import describe_device
from mlx_diffusiongemma.events import BlockCommitted, PromptProcessed, TokenWritten
from mlx_diffusiongemma.generation import alone, block_loop
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.recipes import Recipe, find_recipe, with_changes
from mlx_diffusiongemma.released import NAME, released_values

NEVER = 1e-30  # confidence that no step reaches, so that each canvas takes all its steps
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 32,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
}


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        prompt_tokens: lengths whose prefill is timed; the others follow the first of them.
        repeats: of a prefill, and of a decoder pass.
        steps: fixed numbers of denoising steps, each for `canvases` canvases.
        tokens: written from left to right.
    """

    prompt_tokens: tuple[int, ...]
    repeats: int
    steps: tuple[int, ...]
    canvases: int
    tokens: int


FULL_PLAN = Plan(prompt_tokens=(2048, 8192), repeats=5, steps=(8, 16, 48), canvases=2, tokens=128)
SMALL_PLAN = Plan(prompt_tokens=(40, 80), repeats=2, steps=(2,), canvases=2, tokens=4)


def values_of(small: bool) -> dict[str, Any]:
    """The config.json to measure."""
    if not small:
        return released_values()
    values = released_values(layers=2, vocab_size=512)
    images = {"boi_token_id": 5, "eoi_token_id": 6, "image_token_id": 7}
    return {**values, **images, "canvas_length": 32, "text_config": values["text_config"] | SMALL}


def measure(model: DiffusionGemma, plan: Plan) -> dict[str, Any]:
    """Seconds and bytes, by name."""
    vocab_size = model.config.vocab_size
    longest = max(plan.prompt_tokens)
    ids = mx.random.randint(8, vocab_size, (longest,), key=mx.random.key(1)).tolist()
    assert isinstance(ids, list)
    first = ids[: plan.prompt_tokens[0]]
    warm = Plan(plan.prompt_tokens[:1], repeats=1, steps=(2,), canvases=2, tokens=3)
    for each in (warm, plan):
        mx.reset_peak_memory()
        result = {
            "prefill": [_prefill(model, ids[:count], each.repeats) for count in each.prompt_tokens],
            **_passes(model, first, each),
            "diffusion": [_blocks(model, first, steps, each.canvases) for steps in each.steps],
            "left_to_right": _tokens(model, first, each.tokens),
            "peak_bytes": mx.get_peak_memory(),
        }
    return result


def _seconds(body: Callable[[], Any], repeats: int) -> float:
    """Median over the repeats; `body` returns what has to be computed."""
    taken = []
    for _ in range(repeats):
        mx.synchronize()
        started = time.perf_counter()
        mx.eval(body())
        mx.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _prefill(model: DiffusionGemma, ids: list[int], repeats: int) -> dict[str, float]:
    prompt = mx.array([ids], mx.int32)
    seconds = _seconds(lambda: model.prefill(prompt, model.make_cache()), repeats)
    return {"tokens": len(ids), "seconds": seconds, "tokens_per_second": len(ids) / seconds}


def _passes(model: DiffusionGemma, ids: list[int], plan: Plan) -> dict[str, float]:
    """A decoder pass by itself, fed by the one before; and a step, with the sampler around it."""
    length, vocab_size = model.config.canvas_length, model.config.vocab_size
    cache = model.make_cache()
    model.prefill(mx.array([ids], mx.int32), cache)
    canvas = mx.random.randint(8, vocab_size, (1, length), key=mx.random.key(2))
    logits = model.denoise(canvas, cache, None)
    mx.eval(canvas, logits)
    steps = max(plan.steps)

    def all_steps() -> None:
        settings = SamplerSettings(max_denoising_steps=steps, confidence_threshold=NEVER)
        loop = denoise(
            lambda shown, previous: model.denoise(shown, cache, previous),
            SeededDraws(0),
            settings,
            canvas_length=length,
            vocab_size=vocab_size,
        )
        assert sum(1 for _ in loop) == steps

    return {
        "pass_seconds": _seconds(lambda: model.denoise(canvas, cache, logits), plan.repeats),
        "step_seconds": _seconds(all_steps, 1) / steps,
    }


def _blocks(model: DiffusionGemma, ids: list[int], steps: int, canvases: int) -> dict[str, float]:
    """Whole canvases, each committed before the next; the prompt's time is not in it."""
    cache = PrefixCache(model)
    loop = block_loop(
        model.config,
        ids,
        cache,
        draws=SeededDraws(0),
        settings=SamplerSettings(max_denoising_steps=steps, confidence_threshold=NEVER),
        max_tokens=canvases * model.config.canvas_length,
        eos_token_ids=frozenset(),
    )
    count, seconds = _after_the_prompt(alone(loop, cache))
    return {"steps": steps, "tokens": count, "tokens_per_second": count / seconds}


def _tokens(model: DiffusionGemma, ids: list[int], count: int) -> dict[str, float]:
    cache = PrefixCache(model)
    loop = token_loop(
        model.config,
        ids,
        cache,
        draws=SeededDraws(0),
        settings=TokenSettings(),
        max_tokens=count,
        eos_token_ids=frozenset(),
    )
    written, seconds = _after_the_prompt(alone(loop, cache))
    return {"tokens": written, "tokens_per_second": written / seconds}


def _after_the_prompt(events: Iterator[Any]) -> tuple[int, float]:
    """Tokens that were written, and the seconds since the prompt had been read."""
    started, count = 0.0, 0
    for event in events:
        if isinstance(event, PromptProcessed):
            mx.synchronize()
            started = time.perf_counter()
        elif isinstance(event, BlockCommitted | TokenWritten):
            count += len(event.token_ids)
    mx.synchronize()
    return count, time.perf_counter() - started


def report(recipe: Recipe, small: bool) -> dict[str, Any]:
    """Everything about one recipe on this machine."""
    config = parse_config(values_of(small))
    started = time.perf_counter()
    model = random_model(config, recipe)
    mx.synchronize()
    return {
        "machine": describe_machine(),
        "device": asdict(describe_device()),
        "model": {
            "name": "small" if small else f"random weights with the dimensions of {NAME}",
            "layers": len(config.layers),
            "recipe": recipe.name,
            "dtype": recipe.dtype,
            "weight_bytes": mx.get_active_memory(),
            "seconds_to_make": time.perf_counter() - started,
        },
        **measure(model, SMALL_PLAN if small else FULL_PLAN),
    }


def main() -> None:
    """Measure one recipe, print JSON, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="mixed-4-8", help="mixed-4-8, 8bit, or bf16")
    parser.add_argument("--small", action="store_true", help="tiny dimensions, to try the program")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    arguments = parser.parse_args()
    recipe = with_changes(find_recipe(arguments.recipe), dtype="bfloat16")
    text = json.dumps(report(recipe, arguments.small), indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
