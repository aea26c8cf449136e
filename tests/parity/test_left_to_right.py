"""Writing from left to right against transformers' encoder: whole answers, and logits."""

import mlx.core as mx
import numpy as np
import pytest
from recordings import FIXTURES, read_about, read_arrays, tiny_folder
from tolerances import PARITY

from mlx_diffusiongemma import GenerationOptions, load
from mlx_diffusiongemma.runtime import load_model

FOLDER = FIXTURES / "left_to_right"
ANSWERS = sorted(FOLDER.glob("demo_*.safetensors"))
LOGITS = sorted(path for path in FOLDER.glob("*.safetensors") if path not in ANSWERS)

by_name = {"ids": lambda path: path.stem}


@pytest.fixture(scope="module")
def demo():
    return load("demo", dtype="float32")


@pytest.mark.parametrize("path", ANSWERS, **by_name)
def test_a_greedy_answer_is_the_one_that_transformers_writes(demo, path):
    about, recorded = read_about(path), read_arrays(path)
    messages = [{"role": "user", "content": about["text"]}]
    result = demo.generate(messages, GenerationOptions(mode="ar"))
    assert demo.tokenizer.encode_prompt(messages) == recorded["prompt"][0].tolist()
    assert list(result.token_ids) == recorded["tokens"][:-1].tolist()
    assert (result.text, result.finish_reason) == (about["answer"], "stop")


def test_one_answer_is_longer_than_the_window(demo):
    assert (
        max(len(read_arrays(path)["tokens"]) for path in ANSWERS) > 2 * demo.config.sliding_window
    )


@pytest.mark.parametrize("path", LOGITS, **by_name)
def test_the_logits_of_every_token_are_those_of_transformers(path):
    recorded = read_arrays(path)
    model = load_model(tiny_folder(read_about(path)["model"]), dtype="float32")
    assert len(recorded["tokens"]) > model.config.sliding_window
    cache = model.make_cache()
    feed = mx.array(recorded["prompt"])
    logits = model.head(model.prefill(feed, cache)[:, -1:])
    for token, row in zip(recorded["tokens"], recorded["logits"], strict=True):
        assert np.abs(np.array(logits)[0, 0] - row).max() < PARITY["logits"]
        logits = model.next_logits(mx.array([[int(token)]], mx.int32), cache)
