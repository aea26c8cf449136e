"""The tiny models, the demo and quantised ones on the GPU: the recorded numbers, the same text."""

import mlx.core as mx
import numpy as np
import our_passes
import our_replay
import pytest
from recordings import FIXTURES, MANIFEST, read_about, read_arrays, read_case, tiny_folder
from small_traces import folder_of, ours, shipped
from tolerances import QUANTIZED_RELATIVE

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.parity.verdict import judge
from mlx_diffusiongemma.parity.workflow import check
from mlx_diffusiongemma.runtime import load_model
from mlx_diffusiongemma.text import Tokenizer

PASSES = {
    "small_window": "length-19",
    "middle_window": "length-51",
    "wide_window": "length-17-batch-2",
}
REPLAYS = ("early_stop", "end_token", "partial_budget")
ANSWERS = ("sudoku", "chat", "colour", "story")
CLASSES = {mx.float32: "fp32", mx.float16: "fp16", mx.bfloat16: "bf16"}


def loaded(folder, dtype: mx.Dtype = mx.float32) -> DiffusionGemma:
    return load_model(folder, dtype=str(dtype).removeprefix("mlx.core."))


@pytest.mark.parametrize("name", PASSES)
def test_both_passes_match_transformers(place, name):
    recording = read_case(FIXTURES / "passes" / f"{name}.safetensors", PASSES[name])
    with place.default():
        found = our_passes.errors(loaded(tiny_folder(name)), recording)
    for quantity in ("denoise/logits", "prompt/hidden", "block/keys"):
        place.measured(quantity, found[quantity])
    assert not our_passes.failures(found)


@pytest.mark.parametrize("name", REPLAYS)
def test_replayed_draws_give_the_same_decisions(place, name):
    path = FIXTURES / "replays" / f"{name}.safetensors"
    about = read_about(path)
    with place.default():
        model = loaded(tiny_folder(about["model"]))
        assert our_replay.differences(model, read_arrays(path), about["settings"]) == []


@pytest.mark.parametrize("name", ANSWERS)
def test_the_demo_writes_the_same_text_by_replay(place, name):
    path = FIXTURES / "demo" / f"{name}.safetensors"
    recorded, settings = read_arrays(path), read_about(path)["settings"]
    with place.default():
        model = loaded(hub.resolve(hub.DEMO))
        assert our_replay.differences(model, recorded, settings) == []
        tokens = our_replay.run(model, recorded, settings)["token_ids"]
    text = Tokenizer.load(hub.resolve(hub.DEMO)).decode(tokens.tolist())
    assert text == MANIFEST["demo"]["facts"][name]["answer"]


@pytest.mark.parametrize("name", ["demo_story", "demo_colour"])
def test_the_demo_writes_the_same_text_from_left_to_right(place, name):
    recorded = read_arrays(FIXTURES / "left_to_right" / f"{name}.safetensors")
    with place.default():
        model = loaded(hub.resolve(hub.DEMO))
        assert greedy(model, recorded["prompt"], len(recorded["tokens"])) == (
            recorded["tokens"].tolist()
        )


def greedy(model: DiffusionGemma, prompt: np.ndarray, length: int) -> list[int]:
    cache = model.make_cache()
    model.prefill(mx.array(prompt[:, :-1]), cache)
    token, written = mx.array(prompt[:, -1:]), []
    for _ in range(length):
        token = mx.argmax(model.next_logits(token, cache), axis=-1).astype(mx.int32)
        written.append(token.item())
    return written


@pytest.mark.parametrize("name", ["demo", "small_window", "wide_window"])
def test_the_shipped_traces_pass_in_every_dtype(place, name):
    for dtype in place.dtypes():
        with place.default():
            comparison = check(shipped(name), ours(loaded(folder_of(name), dtype), name))
        verdict = judge(comparison)
        worst = max(operation.relative for operation in comparison.operations)
        place.measured(f"relative_error.{CLASSES[dtype]}", worst)
        assert (verdict.precision, verdict.passed) == (CLASSES[dtype], True), verdict


@pytest.mark.parametrize("recipe", sorted(MANIFEST["mlx_vlm"]["facts"]))
def test_quantised_models_match_mlx_vlm(place, recipe):
    folder = FIXTURES / "mlx_vlm" / recipe
    recorded = read_arrays(folder / "logits.safetensors")
    with place.default():
        found = our_passes.run(loaded(folder), recorded)
    for name in ("prompt/logits", "denoise/logits", "conditioned/logits"):
        error = float(np.abs(found[name] - recorded[name]).max() / np.abs(recorded[name]).max())
        place.measured(name, error)
        assert error < QUANTIZED_RELATIVE, name
