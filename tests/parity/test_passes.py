"""Both passes of the tiny models against transformers, layer by layer."""

import json

import our_passes
import pytest
from recordings import FIXTURES, case_names, read_case, tiny_folder

from mlx_diffusiongemma.runtime import load_model

PASSES = sorted((FIXTURES / "passes").glob("*.safetensors"))
CASES = [(path.stem, case) for path in PASSES for case in case_names(path)]

each_case = pytest.mark.parametrize(("name", "case"), CASES)


@pytest.fixture(scope="module")
def models():
    return {path.stem: load_model(tiny_folder(path.stem), dtype="float32") for path in PASSES}


@each_case
def test_both_passes_match_transformers(models, name, case):
    recording = read_case(FIXTURES / "passes" / f"{name}.safetensors", case)
    found = our_passes.errors(models[name], recording)
    assert {"denoise/experts", "block/keys", "conditioned/logits", "second/logits"} <= set(found)
    assert not our_passes.failures(found)


@pytest.mark.parametrize(
    ("name", "case", "chunk_size"),
    [
        ("small_window", "length-9", 8),
        ("wide_window", "length-17-batch-2", 4),
        ("small_window", "length-19", 1),
        ("small_window", "length-19", 5),
        ("small_window", "length-19", 18),
        ("middle_window", "length-51", 5),
        ("middle_window", "length-51", 24),
        ("wide_window", "length-101", 40),
    ],
)
def test_a_prompt_read_in_chunks_matches_transformers(models, name, case, chunk_size):
    recording = read_case(FIXTURES / "passes" / f"{name}.safetensors", case)
    found = our_passes.errors(models[name], recording, chunk_size=chunk_size)
    assert not our_passes.failures(found)


def test_the_recordings_cover_what_they_are_for():
    configs = {
        name: json.loads((tiny_folder(name) / "config.json").read_text()) for name in _names()
    }
    windows = {name: config["text_config"]["sliding_window"] for name, config in configs.items()}
    for name in ("small_window", "middle_window"):
        around = {1, windows[name] - 2, windows[name] - 1, windows[name], windows[name] + 1}
        lengths = {read_case(path, case)["prompt"].shape[1] for path, case in _cases(name)}
        assert around | {2 * windows[name] + 3} <= lengths
    assert windows["small_window"] < configs["small_window"]["canvas_length"]
    assert windows["wide_window"] > configs["wide_window"]["canvas_length"] + 17
    assert "per_layer_config" in configs["wide_window"]["text_config"]
    assert "global_head_dim" not in configs["wide_window"]["text_config"]
    assert "global_head_dim" in configs["small_window"]["text_config"]
    index = (tiny_folder("middle_window") / "model.safetensors.index.json").read_text()
    stored = json.loads(index)["weight_map"]
    assert "lm_head.weight" in stored
    assert "model.encoder.language_model.layers.0.mlp.up_proj.weight" in stored


def _names() -> list[str]:
    return [path.stem for path in PASSES]


def _cases(name: str) -> list:
    return [(FIXTURES / "passes" / f"{name}.safetensors", case) for n, case in CASES if n == name]
