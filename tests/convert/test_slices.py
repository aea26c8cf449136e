"""Tensors slice by slice: the same bytes whatever the slices, true errors, and bounded memory."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny
from convert_plans import (
    bits,
    content,
    hand_made,
    in_small_slices,
    load,
    normal,
    packed_plan,
    plan_of,
    write_source,
    write_tensors,
)

from mlx_diffusiongemma.convert.pack import pack, unpack
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.errors import ConversionError
from mlx_diffusiongemma.quantization import Quantization


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("slices") / "source")


@pytest.mark.parametrize("slice_bytes", [5000, 30_000])
def test_the_size_of_the_slices_does_not_matter(source, tmp_path, monkeypatch, slice_bytes):
    plan = plan_of(source)
    run(plan, tmp_path / "at once")
    in_small_slices(monkeypatch, slice_bytes)
    run(plan, tmp_path / "in slices")
    assert content(tmp_path / "at once") == content(tmp_path / "in slices")


@pytest.mark.parametrize("how", [None, Quantization(4, 64), Quantization(3, 32)], ids=str)
def test_a_slice_may_be_a_single_row(tmp_path, monkeypatch, how):
    (info,) = write_tensors(
        tmp_path / "a" / "s.safetensors", {"w.weight": normal(3, 5, 64, dtype=mx.float32)}
    ).values()
    plan = hand_made(tmp_path, packed_plan(info, how))
    run(plan, tmp_path / "at once")
    in_small_slices(monkeypatch, 1)
    run(plan, tmp_path / "in rows")
    assert content(tmp_path / "at once") == content(tmp_path / "in rows")


def test_errors_are_those_of_the_packed_tensors(source, tmp_path):
    plan = plan_of(source)
    result = run(plan, tmp_path / "output")
    originals = load(source)
    packed = [tensor for tensor in plan.tensors if tensor.quantization]
    assert set(result.errors) == {tensor.parameter for tensor in packed}
    for tensor in packed:
        original = np.array(originals[tensor.sources[0].name].astype(mx.float32), np.float64)
        written = unpack(
            pack(originals[tensor.sources[0].name], tensor.quantization), tensor.quantization
        )
        difference = np.array(written, np.float64) - original
        error = result.errors[tensor.parameter]
        rms = np.sqrt(np.square(difference).sum() / np.square(original).sum())
        assert error.rms == pytest.approx(rms, rel=1e-4)
        assert error.largest == pytest.approx(
            np.abs(difference).max() / np.abs(original).max(), rel=1e-4
        )
        assert error.search_gain is None


def test_errors_of_a_large_tensor_come_from_rows_all_over_it(tmp_path, monkeypatch):
    """Every tenth row is measured, whatever the slices: only those have values here."""
    rows = np.zeros((100, 64), np.float32)
    rows[::10] = np.random.default_rng(0).normal(size=(10, 64))
    (info,) = write_tensors(
        tmp_path / "a" / "s.safetensors", {"w.weight": mx.array(rows).astype(mx.bfloat16)}
    ).values()
    monkeypatch.setattr("mlx_diffusiongemma.convert.slices.MEASURED_VALUES", 640)
    errors = set()
    for number, slice_bytes in enumerate((128, 128 * 7, 10**6)):
        in_small_slices(monkeypatch, slice_bytes)
        plan = hand_made(tmp_path, packed_plan(info, Quantization(4, 64)))
        error = run(plan, tmp_path / f"output {number}").errors["w.weight"]
        errors.add((round(error.rms, 6), round(error.largest, 6)))
    assert len(errors) == 1
    rms, largest = errors.pop()
    assert 0.05 < rms < 0.2 and 0.02 < largest < 0.2


def test_searching_is_used_and_its_gain_is_reported(tmp_path):
    values = normal(64, 128)
    (info,) = write_tensors(tmp_path / "a" / "s.safetensors", {"w.weight": values}).values()
    how = Quantization(3, 64)
    errors = {}
    for search in (False, True):
        plan = hand_made(tmp_path, packed_plan(info, how), search=search)
        errors[search] = run(plan, tmp_path / f"search {search}").errors["w.weight"]
    assert errors[True].rms < 0.95 * errors[False].rms
    assert errors[True].search_gain == pytest.approx(
        1 - errors[True].rms / errors[False].rms, rel=1e-3
    )


def test_a_packed_source_is_unpacked_and_packed_anew(tmp_path):
    values = tiny.config_values()
    old = Quantization(8, 32)
    packed, _ = tiny.pack(tiny.random_tensors(values), lambda path: old)
    values["quantization"] = tiny.table(old)
    folder = tiny.write_checkpoint(tmp_path / "source", values, packed)
    plan = plan_of(folder)
    run(plan, tmp_path / "output")
    written = load(tmp_path / "output")
    name = "model.decoder.layers.1.experts.gate_up_proj"
    parts = [packed[f"{name}.{leaf}"] for leaf in ("weight", "scales", "biases")]
    expected = pack(unpack(parts, old).astype(mx.bfloat16), Quantization(4, 64))
    for leaf, array in zip(("weight", "scales", "biases"), expected, strict=True):
        assert bits(written[f"{name}.{leaf}"]) == bits(array)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_values_beyond_float16_stop_a_conversion_to_it(tmp_path, dtype):
    (info,) = write_tensors(
        tmp_path / "a" / "s.safetensors", {"w.weight": mx.full((2, 64), 70_000).astype(dtype)}
    ).values()
    for how in (None, Quantization(4, 64), Quantization(8, 32, "mxfp8")):
        with pytest.raises(ConversionError, match="`w.weight` holds values beyond float16"):
            run(hand_made(tmp_path, packed_plan(info, how, "float16")), tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_memory_is_that_of_a_few_slices(tmp_path, monkeypatch):
    """MLX is lazy: nothing may keep a graph, and with it every slice, alive."""
    (info,) = write_tensors(
        tmp_path / "a" / "s.safetensors", {"w.weight": normal(4096, 512)}
    ).values()
    slice_bytes = 1 << 16
    in_small_slices(monkeypatch, slice_bytes)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    held = []
    run(
        hand_made(tmp_path, packed_plan(info, Quantization(4, 64))),
        tmp_path / "output",
        progress=lambda _: held.append(mx.get_active_memory() - before),
    )
    assert info.nbytes == 64 * slice_bytes
    assert mx.get_peak_memory() - before < 16 * slice_bytes
    assert max(held) < 8 * slice_bytes
    assert mx.get_active_memory() == before and mx.get_cache_memory() == 0
