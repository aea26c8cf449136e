"""A long prompt takes the memory that the memory check says, and no more."""

import time
from dataclasses import dataclass

import mlx.core as mx
import pytest
import tiny
from places import Place
from synthetic_packed import random_model

from mlx_diffusiongemma import device
from mlx_diffusiongemma.config import ModelConfig, parse_config
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.recipes import find_recipe
from mlx_diffusiongemma.released import released_values

SLACK = 1.1  # small arrays are not in the check, and MLX rounds buffers up to pages


@dataclass(frozen=True)
class Size:
    """A sliding and a full layer, a prompt, and how much of it is read at a time."""

    config: ModelConfig
    tokens: int
    chunk: int
    dtype: mx.Dtype


def size_of(place: Place, tokens: int) -> Size:
    """Released width on a GPU; on the CPU the tiny model, and a sixteenth of the tokens."""
    if place.is_gpu:
        config = parse_config(released_values(layers=2, vocab_size=4096))
        return Size(config, tokens, PREFILL_CHUNK, mx.bfloat16)
    config = parse_config(
        tiny.config_values(
            num_hidden_layers=2, layer_types=[tiny.SLIDING, tiny.FULL], num_attention_heads=8
        )
    )
    return Size(config, tokens // 16, PREFILL_CHUNK // 16, mx.float32)


@pytest.mark.parametrize("tokens", [16_384, 32_768])
def test_a_long_prompt_takes_what_the_memory_check_says(place, tokens, monkeypatch):
    size = size_of(place, tokens)
    monkeypatch.setattr(device, "PREFILL_CHUNK", size.chunk)
    with place.default():
        model = random_model(size.config, find_recipe("mixed-4-8"))
        model.set_dtype(size.dtype)
        mx.eval(model.parameters())
        taken, seconds = peak_of_prefill(model, size)
        need = device.memory_need(size.config, [], size.dtype, size.tokens)
    place.measured("taken_bytes", taken)
    place.measured("need_bytes", need.total)
    place.measured("seconds", seconds)
    assert need.caches < taken < SLACK * need.total


def peak_of_prefill(model: DiffusionGemma, size: Size) -> tuple[int, float]:
    """Most bytes beyond those that were there, and the seconds it took."""
    prompt = mx.random.randint(0, 96, (1, size.tokens), key=mx.random.key(0))
    mx.eval(prompt)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    started = time.perf_counter()
    cache = model.make_cache()
    mx.eval(model.prefill(prompt, cache, size.chunk))
    return mx.get_peak_memory() - before, time.perf_counter() - started
