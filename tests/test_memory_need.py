"""The memory a model needs, and what to do when there is too little."""

from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest
import tiny
from scripted import generate_blocks

from mlx_diffusiongemma import device
from mlx_diffusiongemma.bench import ledger
from mlx_diffusiongemma.bench.ledger import FULL, SLIDING
from mlx_diffusiongemma.checkpoint import TensorInfo, plan_tensors, read_tensors
from mlx_diffusiongemma.config import parse_config, read_config
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.errors import ConfigError, MemoryNeedError
from mlx_diffusiongemma.events import BlockCommitted
from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.model import DiffusionGemma, diffusion_gemma
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.recipes import RECIPES
from mlx_diffusiongemma.released import released_values
from mlx_diffusiongemma.runtime import load_model

RELEASED = parse_config(released_values())
DEMO = Path(str(files("mlx_diffusiongemma") / "demo"))
GB = 10**9
# Bytes of caches at 4096 tokens in a two-byte dtype, by hand: 25 sliding layers hold their window
# and a canvas, 5 full ones everything.
CACHES = 25 * 2 * 8 * 256 * (1024 + 256) * 2 + 5 * 2 * 2 * 512 * (4096 + 256) * 2
STEP = 4 * 256 * 262_144 * 9 // 2
WIDE = 2 * 256 * 262_144  # bytes of the logits of a canvas in a two-byte dtype


def weights(*shapes, dtype="BF16"):
    return [TensorInfo("w", Path(), shape, dtype) for shape in shapes]


@pytest.fixture(autouse=True)
def cpu():
    """Compute on the CPU: GPU kernels have other temporary arrays."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.fixture
def with_kernels(monkeypatch):
    """As on a Mac."""
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.delenv(dispatch.SWITCH, raising=False)


def test_the_need_by_hand():
    need = device.memory_need(RELEASED, weights((1000, 1000)), mx.bfloat16, 4096)
    assert (need.weights, need.caches, need.working) == (2_000_000, CACHES, STEP)
    assert need.total == 2_000_000 + CACHES + STEP


def test_floats_take_the_compute_dtype_and_packed_weights_stay():
    tensors = weights((10, 10)) + weights((10, 10), dtype="U32") + weights((10, 10), dtype="U8")
    for dtype, size in ((mx.float32, 4), (mx.bfloat16, 2)):
        need = device.memory_need(RELEASED, tensors, dtype, 4096)
        assert need.weights == 100 * size + 400 + 100
        assert need.caches == CACHES * size // 2


def test_a_short_context_takes_small_caches_in_every_layer():
    need = device.memory_need(RELEASED, [], mx.bfloat16, 100)
    assert need.caches == 2 * (25 * 8 * 256 + 5 * 2 * 512) * (100 + 256) * 2


def test_a_long_context_takes_attention_scores_too():
    """2048 queries of 16 heads against everything, in each full layer."""
    need = device.memory_need(RELEASED, [], mx.bfloat16, 262_144)
    assert need.working > 16 * 2048 * 262_144 * 2


def test_the_need_grows_with_the_context():
    needs = [device.memory_need(RELEASED, [], mx.bfloat16, 2**n).total for n in range(8, 19)]
    assert needs == sorted(set(needs))


def test_the_context_is_at_most_the_models_own():
    longest, longer = (
        device.memory_need(RELEASED, [], mx.bfloat16, context) for context in (262_144, 10**9)
    )
    assert longer == longest


@pytest.mark.parametrize("context", [0, -1, 2.0, True, "4096"])
def test_a_context_is_a_length(context):
    with pytest.raises(ConfigError) as caught:
        load_model(DEMO, max_context=context)
    assert str(caught.value) == f"max_context is {context!r}"
    assert caught.value.hint == "max_context must be an integer of 1 or more"


def test_the_demo_needs_little():
    tensors = plan_tensors(read_tensors(DEMO)).used.values()
    need = device.memory_need(read_config(DEMO), tensors, mx.float32, device.DEFAULT_CONTEXT)
    # 1,714,930 parameters in float32.
    assert need.weights == 4 * sum(info.size for info in tensors) == 6_859_720
    assert need.total < 0.2 * GB
    assert device.memory_need(read_config(DEMO), tensors, mx.float32, 256).total < 0.02 * GB


@pytest.mark.parametrize(
    ("changes", "canvas_length", "prompt"),
    [
        ({"vocab_size": 16_384}, 16, 8),
        ({"num_attention_heads": 8, "layer_types": 3 * [tiny.FULL]}, 8, 400),
    ],
    ids=["denoising", "a long prompt"],
)
def test_the_need_is_what_a_generation_takes(changes, canvas_length, prompt, monkeypatch):
    """In chunks as on a GPU: those of the CPU back-end are shorter and take less."""
    monkeypatch.setattr(diffusion_gemma, "_CPU_CHUNK", PREFILL_CHUNK)
    config = parse_config(tiny.config_values(**changes) | {"canvas_length": canvas_length})
    model = DiffusionGemma(config)
    mx.eval(model.parameters())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    blocks = generate_blocks(
        model,
        [1] * prompt,
        draws=SeededDraws(1),
        settings=SamplerSettings(max_denoising_steps=3),
        max_tokens=1,
        eos_token_ids=frozenset(),
    )
    assert isinstance(list(blocks)[-1], BlockCommitted)
    taken = mx.get_peak_memory() - before
    need = device.memory_need(config, [], mx.float32, prompt + canvas_length).total
    assert 0.8 * need < taken < 1.02 * need  # MLX runs ahead as far as the threads let it


# With our kernels, on a Mac ---------------------------------------------------------------------


@pytest.mark.usefixtures("with_kernels")
def test_a_step_with_kernels_needs_its_wide_arrays_in_the_compute_dtype():
    """Three of them, and what four layers write: with a long context that is more."""
    layers = RELEASED.layers
    kept = sum(device.written_by(RELEASED, layer, 600) for layer in layers[2:6])
    assert [layer.is_sliding for layer in layers[2:6]] == [True, True, True, False]
    need = device.memory_need(RELEASED, [], mx.bfloat16, 600)
    assert need.working == 3 * WIDE + 2 * kept
    assert 0.6 * GB < need.working < STEP
    longer = device.memory_need(RELEASED, [], mx.bfloat16, 4096)
    assert need.working < longer.working < 0.9 * GB


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("missed", [None, 0, 32, 256])
def test_all_that_a_step_keeps_at_once_fits_into_that(missed):
    """Counted from the graph of the step that `generate` computes: everything outside of the
    layers, the logits of the step before, and four layers."""
    count = ledger.count_ours(missed=missed)
    layers = sum(count.layers[kind].nbytes.total() for kind in (SLIDING, SLIDING, SLIDING, FULL))
    kept = WIDE + count.outside.nbytes.total() + layers
    need = device.memory_need(RELEASED, [], mx.bfloat16, ledger.CONTEXT).working
    assert kept <= need
    assert missed in (0, 32) or need < 1.05 * kept


def test_what_a_layer_writes_is_not_counted_too_low():
    found = ledger.count_ours(context=600).layers
    kinds = {SLIDING: RELEASED.layers[0], FULL: RELEASED.layers[5]}
    for kind, layer in kinds.items():
        counted, need = found[kind].nbytes.total(), 2 * device.written_by(RELEASED, layer, 600)
        assert counted <= need < 1.25 * counted, kind


def test_without_kernels_a_mac_needs_what_plain_mlx_does(monkeypatch, with_kernels):
    fewer = device.memory_need(RELEASED, [], mx.bfloat16, 600).working
    monkeypatch.setenv(dispatch.SWITCH, "0")
    assert fewer < device.memory_need(RELEASED, [], mx.bfloat16, 600).working == STEP


def test_another_answer_keeps_its_logits_in_the_dtype_that_the_head_writes(
    monkeypatch, with_kernels
):
    need = device.memory_need(RELEASED, [], mx.bfloat16, 4096)
    room = need.total + 10 * (need.caches + WIDE)
    assert device.rows_that_fit(RELEASED, need, room) == 11
    monkeypatch.setenv(dispatch.SWITCH, "0")
    need = device.memory_need(RELEASED, [], mx.bfloat16, 4096)
    room = need.total + 10 * (need.caches + 2 * WIDE)
    assert device.rows_that_fit(RELEASED, need, room) == 11
    assert device.rows_that_fit(RELEASED, need, room - 1) == 10


# When it is too little --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("bf16", 50.5), ("8bit", 26.8), ("mixed-4-8", 15.4), ("mixed-3-8", 12.5), ("mixed-2-8", 9.7)],
)
def test_recipes_have_the_sizes_we_publish(name, gigabytes):
    assert device.recipe_bytes(RECIPES[name], RELEASED, 2) == pytest.approx(
        gigabytes * GB, rel=0.03
    )


def test_scales_grow_with_the_compute_dtype():
    extra = [device.recipe_bytes(RECIPES["mixed-4-8"], RELEASED, item) for item in (2, 4)]
    assert extra[1] - extra[0] == pytest.approx(25.25e9 * 2 * 2 / 64, rel=0.02)
    float_modes = [device.recipe_bytes(RECIPES["mxfp8"], RELEASED, item) for item in (2, 4)]
    assert float_modes[1] - float_modes[0] < 0.03 * GB  # the router, which is not packed


def released_need(context=4096):
    return device.memory_need(RELEASED, weights((25_250, 1000, 1000)), mx.bfloat16, context)


@pytest.mark.parametrize(
    ("gigabytes", "recipe"),
    [(48, "8bit"), (29, "8bit"), (24, "mixed-4-8"), (16, "mixed-3-8"), (12, "mixed-2-8")],
)
def test_the_error_names_the_largest_recipe_that_fits(gigabytes, recipe):
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), round(gigabytes * GB))
    assert caught.value.hint == f"the recipe `{recipe}` would fit; `--force` loads it anyway"


def test_the_error_says_what_is_needed_and_what_there_is():
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), 24 * GB)
    assert str(caught.value) == (
        "this model needs 52.1 GB (weights 50.5 GB, caches 0.4 GB, work 1.2 GB) and this device "
        "has 24.0 GB"
    )


def test_when_nothing_fits_the_error_says_so():
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), 8 * GB)
    assert caught.value.hint == "no recipe makes it fit here; `--force` loads it anyway"


def test_a_long_context_leaves_less_room_for_weights():
    for context, recipe in (4096, "8bit"), (131_072, "mixed-4-8"):
        with pytest.raises(MemoryNeedError) as caught:
            device.check_memory(RELEASED, released_need(context), 36 * GB)
        assert f"`{recipe}`" in caught.value.hint


def test_exactly_enough_is_enough():
    need = released_need()
    device.check_memory(RELEASED, need, need.total)
    with pytest.raises(MemoryNeedError):
        device.check_memory(RELEASED, need, need.total - 1)


def test_loading_checks_the_memory_and_force_does_not(monkeypatch):
    monkeypatch.setattr(device, "available_memory", lambda: 1_000_000)
    with pytest.raises(MemoryNeedError, match="this device has 0.0 GB"):
        load_model(DEMO)
    load_model(DEMO, force=True)


def test_loading_makes_room_for_the_context_that_is_asked(monkeypatch):
    tensors = plan_tensors(read_tensors(DEMO)).used.values()
    dtype = device.compute_dtype(read_config(DEMO), None)
    small = device.memory_need(read_config(DEMO), tensors, dtype, 64).total
    monkeypatch.setattr(device, "available_memory", lambda: small)
    load_model(DEMO, max_context=64)
    with pytest.raises(MemoryNeedError):
        load_model(DEMO, max_context=65)
    with pytest.raises(MemoryNeedError):
        load_model(DEMO)
