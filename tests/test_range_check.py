"""float16 on the chips that want it, and bfloat16 after all where the activations do not fit."""

import logging

import mlx.core as mx
import pytest
import tiny

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import device
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.range_check import LARGEST, RangeCheck

PROMPT = [3, 9, 14, 7]
QUICK = GenerationOptions(seed=1, max_tokens=20, max_denoising_steps=2)


def model_of(folder, dtype, scale=1.0):
    values = tiny.config_values(vocab_size=64)
    tensors = tiny.random_tensors(values, seed=2)
    model = tiny.load(folder, values, tensors)
    for layer in model.model.decoder.layers:
        layer.post_feedforward_layernorm.weight = layer.post_feedforward_layernorm.weight * scale
    model.set_dtype(dtype)
    return model


def test_the_peak_is_the_largest_number_of_the_stream(tmp_path):
    model = model_of(tmp_path, mx.float32)
    tokens = mx.array([PROMPT], mx.int32)
    small, large = model.residual_peak(tokens).item(), None
    scaled = model_of(tmp_path / "scaled", mx.float32, scale=1e4)
    large = scaled.residual_peak(tokens).item()
    assert 0 < small < LARGEST < large


def test_a_model_that_fits_stays_as_it_is(tmp_path, caplog):
    model = model_of(tmp_path, mx.float32)
    check = RangeCheck(model)
    assert not check.on_prompt(PROMPT)
    assert model.compute_dtype == mx.float32 and not caplog.records


@pytest.mark.parametrize("scale", [1e4, float("nan")])
def test_a_model_that_does_not_fit_goes_on_in_bfloat16_with_one_notice(tmp_path, caplog, scale):
    model = model_of(tmp_path, mx.float32, scale)
    check = RangeCheck(model)
    with caplog.at_level(logging.WARNING):
        assert check.on_prompt(PROMPT)
        assert not check.on_prompt(PROMPT)
    assert model.compute_dtype == mx.bfloat16
    assert len(caplog.records) == 1 and "bfloat16" in caplog.text


def test_only_the_first_prompt_is_looked_at(tmp_path, monkeypatch):
    model, seen = model_of(tmp_path, mx.float32), []
    peak = model.residual_peak
    monkeypatch.setattr(model, "residual_peak", lambda tokens: seen.append(tokens) or peak(tokens))
    check = RangeCheck(model)
    for _ in range(3):
        check.on_prompt(list(range(60)) * 10)
    assert [tokens.shape for tokens in seen] == [(1, 256)]


# In a runtime -----------------------------------------------------------------------------------


@pytest.fixture
def on_m1(monkeypatch):
    """An M1 as far as the policy goes. Weights are loaded in float32, which the CPU can compute."""
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M1 Max"})
    monkeypatch.setattr(device, "DTYPES", device.DTYPES | {"float16": mx.float32})
    monkeypatch.setattr(device, "wire_memory", lambda: None)
    monkeypatch.setattr(device, "available_memory", lambda: 10**10)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Apple M1", mx.float16),
        ("Apple M2 Ultra", mx.float16),
        ("Apple M3", mx.bfloat16),
        ("Apple M5 Max", mx.bfloat16),
        ("NVIDIA H200", mx.bfloat16),
    ],
)
def test_the_chips_that_emulate_bfloat16_compute_in_float16(monkeypatch, name, expected):
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": name})
    config = parse_config(tiny.config_values() | {"dtype": "bfloat16"})
    assert device.compute_dtype(config, None) == expected
    assert device.compute_dtype(config, "bfloat16") == mx.bfloat16


@pytest.mark.usefixtures("on_m1")
def test_a_runtime_looks_once_where_the_policy_chose_float16(monkeypatch):
    looked = []
    monkeypatch.setattr(RangeCheck, "on_prompt", lambda self, prompt: looked.append(len(prompt)))
    runtime = dg.load("demo")
    assert runtime._responder.range_check is not None
    runtime.generate("2 + 2 =", QUICK)
    assert len(looked) == 1
    assert dg.load("demo", dtype="float32")._responder.range_check is None


@pytest.mark.usefixtures("on_m1")
def test_what_was_read_in_float16_is_read_again_in_bfloat16(monkeypatch):
    """A session may have a cache before its first prompt: from a file."""
    runtime = dg.load("demo")
    session = runtime.session()
    monkeypatch.setattr(RangeCheck, "on_prompt", lambda self, prompt: False)
    session.generate("2 + 2 =", QUICK)
    before = runtime.fingerprint
    monkeypatch.setattr(RangeCheck, "on_prompt", lambda self, prompt: True)
    monkeypatch.setattr("mlx_diffusiongemma.responder.model_fingerprint", lambda model: "another")
    result = session.generate("2 + 3 =", QUICK)
    assert result.stats.cached_tokens == 0
    assert runtime.fingerprint != before
