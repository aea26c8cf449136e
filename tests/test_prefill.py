"""Reading a prompt in chunks gives the cache of one pass, in memory that grows linearly."""

import itertools
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_diffusiongemma.model import diffusion_gemma
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.runtime import load_model

WINDOW = 32  # of the demo model


@pytest.fixture(scope="module")
def model():
    return load_model(Path(str(files("mlx_diffusiongemma").joinpath("demo"))), dtype="float32")


def read(model, tokens, chunk_size):
    cache = model.make_cache()
    model.prefill(tokens, cache, chunk_size)
    canvas = mx.arange(40, 40 + model.config.canvas_length, dtype=mx.int32)[None]
    first = model.denoise(canvas, cache, None)
    return cache, first, model.denoise(canvas, cache, first / 0.7)


def tokens_of(model, length):
    rng = np.random.default_rng(length)
    return mx.array(rng.integers(3, model.config.vocab_size, (1, length)), mx.int32)


LENGTHS = (1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 7)
CHUNKS = (1, 7, WINDOW - 1, WINDOW, WINDOW + 1, 64)


@pytest.mark.parametrize(
    ("length", "chunk_size"),
    [*itertools.product(LENGTHS, CHUNKS), (PREFILL_CHUNK + 2, PREFILL_CHUNK)],
)
def test_chunks_give_the_cache_and_the_logits_of_one_pass(model, length, chunk_size):
    tokens = tokens_of(model, length)
    whole, first, second = read(model, tokens, length)
    parts, first_parts, second_parts = read(model, tokens, chunk_size)
    assert whole.offset == parts.offset == length
    for one, other in zip(whole.layers, parts.layers, strict=True):
        for a, b in zip(one.state(), other.state(), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(np.array(a), np.array(b), atol=2e-5)
    np.testing.assert_allclose(np.array(first), np.array(first_parts), atol=2e-4)
    np.testing.assert_allclose(np.array(second), np.array(second_parts), atol=2e-4)


@pytest.mark.parametrize(("device", "sizes"), [(mx.cpu, [256, 256, 90]), (mx.gpu, [602])])
def test_a_chunk_is_as_long_as_suits_the_device(model, monkeypatch, device, sizes):
    read = []

    def note(tokens, pieces):
        read.append(tokens.shape[1])
        return tokens

    monkeypatch.setattr(model, "_prefill_chunk", note)
    monkeypatch.setattr(diffusion_gemma, "on_cpu", lambda: device == mx.cpu)
    model.prefill(tokens_of(model, 602), model.make_cache())
    assert read == sizes


def test_denoising_leaves_the_cache_as_it_was(model):
    cache, _, _ = read(model, tokens_of(model, 70), 2048)
    fresh = model.make_cache()
    model.prefill(tokens_of(model, 70), fresh)
    for used, unused in zip(cache.layers, fresh.layers, strict=True):
        for a, b in zip(used.state(), unused.state(), strict=True):
            assert np.array_equal(np.array(a), np.array(b))


def test_rows_of_a_batch_do_not_see_each_other(model):
    one, other = tokens_of(model, 40), tokens_of(model, 40) + 1
    both = model.make_cache()
    model.prefill(mx.concatenate([one, other]), both)
    canvas = mx.arange(40, 40 + model.config.canvas_length, dtype=mx.int32)[None]
    logits = model.denoise(mx.concatenate([canvas, canvas]), both, None)
    _, alone, _ = read(model, one, 2048)
    np.testing.assert_allclose(np.array(logits[:1]), np.array(alone), atol=1e-4)


PEAK = """
import resource, sys
import mlx.core as mx
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.model import DiffusionGemma
text = dict(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=16,
    num_attention_heads=1, num_key_value_heads=1, global_head_dim=16, sliding_window=64,
    num_experts=4, top_k_experts=2, moe_intermediate_size=16, max_position_embeddings=32768,
    layer_types=["sliding_attention", "full_attention"],
)
config = parse_config(dict(model_type="diffusion_gemma", canvas_length=32, text_config=text))
model = DiffusionGemma(config)
mx.eval(model.parameters())
mx.reset_peak_memory()
cache = model.make_cache()
model.prefill(mx.zeros((1, int(sys.argv[1])), mx.int32), cache)
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(mx.get_peak_memory(), resident * (1 if sys.platform == "darwin" else 1024))
"""


def test_peak_memory_grows_linearly_with_the_prompt():
    lengths = [2048, 4096, 8192, 16384]
    peaks, resident = [], []
    for length in lengths:
        run = subprocess.run(
            [sys.executable, "-c", PEAK, str(length)], capture_output=True, text=True, check=True
        )
        peak, process = map(int, run.stdout.split())
        peaks.append(peak)
        resident.append(process)
    print("MLX's peak, MB", [round(p / 1e6, 1) for p in peaks])
    print("the process's peak, MB", [round(p / 1e6, 1) for p in resident])
    for measured in (peaks, resident):
        steps = [after - before for before, after in zip(measured, measured[1:], strict=False)]
        # Each step doubles the prompt, so linear growth at most doubles the step before; the
        # first step also holds the second chunk.
        assert steps[1] <= 2.2 * steps[0] + 2e6
        assert steps[2] <= 2.2 * steps[1] + 2e6
        assert measured[-1] <= 8 * measured[0]  # a square would give 64
