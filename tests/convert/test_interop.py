"""What we write and what others write: the same numbers, both ways.

The recorded checkpoints of mlx-vlm are always compared. Live comparisons run where there is an
environment for them: DGEMMA_MLX_VLM names a Python with mlx-vlm 0.7.10, and `make parity` has
transformers.
"""

import os
import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import our_passes
import pytest
import tiny
from recordings import FIXTURES
from tolerances import DEQUANTIZED, PARITY, QUANTIZED_RELATIVE

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES, find_recipe, uniform_recipe, with_changes
from mlx_diffusiongemma.runtime import load_model

SOURCE = FIXTURES / "checkpoints" / "group_64"
VLM_PYTHON = os.environ.get("DGEMMA_MLX_VLM")
EIGHT = Quantization(8, 64)
GAP = 1e-3  # of scores that spread over about 1; rounding makes 1e-5
# What `mlx_vlm.convert` gives 8 bits whatever is asked for.
ALWAYS_EIGHT = tuple((name, EIGHT) for name in ("embedding", "attention", "dense_mlp", "router"))
THEIRS = {
    "affine_4_8": Quantization(4, 64),
    "affine_8": Quantization(8, 64),
    "mxfp4": Quantization(4, 32, "mxfp4"),
}


def load(folder):
    return {
        name: array
        for path in sorted(Path(folder).glob("*.safetensors"))
        if path.name != "logits.safetensors"
        for name, array in mx.load(str(path)).items()
    }


def same_bits(one, other):
    bits = {mx.bfloat16: mx.uint16}
    one, other = (array.view(bits.get(array.dtype, array.dtype)) for array in (one, other))
    return one.dtype == other.dtype and bool(mx.array_equal(one, other))


@pytest.mark.parametrize("name", THEIRS)
def test_the_same_recipe_gives_the_tensors_of_mlx_vlm_bit_for_bit(tmp_path, name):
    recipe = with_changes(uniform_recipe(THEIRS[name]), overrides=ALWAYS_EIGHT)
    convert_checkpoint(SOURCE, tmp_path / "ours", recipe)
    ours, theirs = load(tmp_path / "ours"), load(FIXTURES / "mlx_vlm" / name)
    assert set(ours) == set(theirs)
    assert [key for key in ours if not same_bits(ours[key], theirs[key])] == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_computes_what_its_numbers_stand_for(write, tensors, tmp_path, name):
    recipe = find_recipe(name)
    convert_checkpoint(write(tensors), tmp_path / "packed", recipe)
    _, unpacked = tiny.pack(tensors, recipe.for_module)
    reference = tiny.write_checkpoint(tmp_path / "unpacked", tiny.config_values(), unpacked)
    ours, expected = logits(tmp_path / "packed"), logits(reference)
    assert abs(ours - expected).max() <= DEQUANTIZED * abs(expected).max()


def logits(folder):
    model = load_model(folder, dtype="float32")
    cache = model.make_cache()
    model.prefill(mx.array([[3, 9, 14, 60, 33]]), cache)
    return np.array(model.denoise(mx.array([[5, 4, 50, 61, 7, 8, 90, 2]]), cache, None))


def test_dequantised_is_what_the_packed_numbers_stand_for(write, tensors, tmp_path):
    packed, unpacked = tiny.pack(tensors, lambda path: Quantization(4, 64))
    source = write(packed, quantization=tiny.table(Quantization(4, 64)))
    convert_checkpoint(source, tmp_path / "out", RECIPES["bf16"], layout="transformers")
    written = load(tmp_path / "out")
    assert set(written) == set(tensors)
    for name, array in written.items():
        assert same_bits(array, unpacked[name].astype(mx.bfloat16)), name


def test_a_community_checkpoint_can_be_packed_again(tmp_path):
    source = FIXTURES / "mlx_vlm" / "affine_8"
    convert_checkpoint(source, tmp_path / "direct", "mixed-4-8")
    convert_checkpoint(source, tmp_path / "unpacked", "bf16", layout="transformers")
    convert_checkpoint(tmp_path / "unpacked", tmp_path / "again", "mixed-4-8")
    direct, again, theirs = map(load, (tmp_path / "direct", tmp_path / "again", source))
    assert set(direct) == set(again)
    copied = {name for name in direct if ".experts." not in name and ".router.proj" not in name}
    # What has 8 bits on both sides is copied; unpacking it to bfloat16 would have lost.
    assert [name for name in copied if not same_bits(direct[name], theirs[name])] == []
    rest = set(direct) - copied
    assert [name for name in rest if not same_bits(direct[name], again[name])] == []


@pytest.mark.parametrize("name", ["released", "saved"])
def test_a_fine_tune_that_transformers_saved_converts(tmp_path, name):
    """`wide_window` is what save_pretrained writes: `per_layer_config`, nulls elsewhere."""
    folder = FIXTURES / "checkpoints" / ("wide_window" if name == "saved" else "small_window")
    convert_checkpoint(folder, tmp_path / "out", "bf16")
    ours, expected = (
        load_model(tmp_path / "out", dtype="float32"),
        load_model(folder, dtype="float32"),
    )
    tokens = mx.array([[9, 8, 7, 30, 31, 32]])
    both = []
    for model in (ours, expected):
        cache = model.make_cache()
        both.append(np.array(model.head(model.prefill(tokens, cache))))
    assert np.array_equal(*both)


def inputs_without_ties(model):
    """A prompt and a canvas on which rounding cannot change which experts run.

    Two of almost equal score are chosen by the last bits, which differ from run to run.
    """
    draws = (draw_inputs(model.config, seed) for seed in range(100))
    return next(inputs for inputs in draws if smallest_gap(model, inputs) > GAP)


def draw_inputs(config, seed):
    random = np.random.default_rng(seed)
    return {
        name: random.integers(8, config.vocab_size, (1, length)).astype(np.int32)
        for name, length in (("prompt", 11), ("canvas", config.canvas_length))
    }


def smallest_gap(model, inputs):
    """Between a chosen expert's score and a rejected one's, over the passes of a recording."""
    gaps = []
    route = kernels.route

    def noting(scores, scale, top_k):
        ascending = np.sort(np.array(scores.astype(mx.float32)), axis=-1)
        gaps.append((ascending[:, -top_k] - ascending[:, -top_k - 1]).min())
        return route(scores, scale, top_k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "route", noting)
        cache = model.make_cache()
        model.prefill(mx.array(inputs["prompt"]), cache)
        canvas = mx.array(inputs["canvas"])
        logits = model.denoise(canvas, cache, None)
        mx.eval(model.denoise(canvas, cache, logits / our_passes.TEMPERATURE))
    assert len(gaps) == 3 * len(model.config.layers)
    return min(gaps)


def test_live_comparisons_have_inputs_without_ties():
    model = load_model(FIXTURES / "checkpoints" / "middle_window", dtype="float32")
    assert smallest_gap(model, inputs_without_ties(model)) > GAP
    assert smallest_gap(model, draw_inputs(model.config, 7)) < GAP / 100  # by bad luck


@pytest.mark.skipif(VLM_PYTHON is None, reason="DGEMMA_MLX_VLM names no Python with mlx-vlm")
@pytest.mark.parametrize("keep_vision", [True, False])
@pytest.mark.parametrize(
    ("model", "recipe"),
    [*(("group_64", name) for name in RECIPES), ("wide_window", "bf16"), ("middle_window", "bf16")],
)
def test_mlx_vlm_reads_what_we_write(tmp_path, model, recipe, keep_vision):
    source = FIXTURES / "checkpoints" / model
    convert_checkpoint(source, tmp_path / "out", recipe, keep_vision=keep_vision)
    ours = load_model(tmp_path / "out", dtype="float32")
    np.savez(tmp_path / "inputs.npz", **inputs_without_ties(ours))
    script = Path(__file__).with_name("vlm_logits.py")
    files = [tmp_path / name for name in ("out", "inputs.npz", "logits.npz")]
    subprocess.run([VLM_PYTHON, script, *files], check=True, timeout=600)
    theirs = dict(np.load(tmp_path / "logits.npz"))
    ours = our_passes.run(ours, theirs)
    for name in ("prompt/logits", "denoise/logits", "conditioned/logits"):
        error = np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()
        assert error < QUANTIZED_RELATIVE, name


@pytest.mark.parity
@pytest.mark.parametrize("model", ["group_64", "wide_window"])
def test_transformers_reads_what_dequantize_writes(tmp_path, model):
    pytest.importorskip("torch", reason="torch is not installed; `make parity` runs these")
    from tools.reference import passes

    source = FIXTURES / "checkpoints" / model
    packed = tmp_path / "packed"
    convert_checkpoint(source, packed, "mixed-4-8" if model == "group_64" else "bf16")
    convert_checkpoint(packed, tmp_path / "out", "bf16", layout="transformers")
    reference = passes.load(tmp_path / "out")
    recording = passes.record(reference, passes.draw_inputs(reference, 11, seed=3))
    errors = our_passes.errors(load_model(tmp_path / "out", dtype="float32"), recording)
    assert max(error for name, error in errors.items() if "logits" in name) < PARITY["logits"]
