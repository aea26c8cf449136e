"""The model in the package against transformers: logits, and answers on the same draws."""

import our_passes
import our_replay
import pytest
from recordings import FIXTURES, read_about, read_arrays, read_case

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.runtime import load_model
from mlx_diffusiongemma.text import Tokenizer

REPLAYS = [path for path in (FIXTURES / "demo").glob("*.safetensors") if path.stem != "passes"]

each_answer = pytest.mark.parametrize("path", sorted(REPLAYS), ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def demo():
    return load_model(hub.resolve(hub.DEMO), dtype="float32")


@each_answer
def test_replayed_draws_give_the_same_answer(demo, path):
    settings = read_about(path)["settings"]
    assert our_replay.differences(demo, read_arrays(path), settings) == []


def test_both_passes_match_transformers(demo):
    recording = read_case(FIXTURES / "demo" / "passes.safetensors", "sudoku")
    assert recording["prompt"].shape[1] > demo.config.sliding_window
    assert not our_passes.failures(our_passes.errors(demo, recording))


@each_answer
def test_a_prompt_becomes_the_tokens_that_transformers_makes_of_it(path):
    tokenizer = Tokenizer.load(hub.resolve(hub.DEMO))
    messages = [{"role": "user", "content": read_about(path)["text"]}]
    assert tokenizer.encode_prompt(messages) == read_arrays(path)["prompt"][0].tolist()


def test_one_answer_takes_several_canvases():
    assert max(len(read_arrays(path)["steps"]) for path in REPLAYS) >= 2
