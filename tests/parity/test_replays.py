"""Whole generations of the tiny models against transformers, on the same random draws."""

import our_replay
import pytest
from recordings import FIXTURES, read_about, read_arrays, tiny_folder

from mlx_diffusiongemma.runtime import load_model

REPLAYS = sorted((FIXTURES / "replays").glob("*.safetensors"))


@pytest.mark.parametrize("path", REPLAYS, ids=lambda path: path.stem)
def test_replayed_draws_give_the_same_decisions_and_tokens(path):
    about = read_about(path)
    model = load_model(tiny_folder(about["model"]), dtype="float32")
    assert our_replay.differences(model, read_arrays(path), about["settings"]) == []


def test_the_replays_cover_what_they_are_for():
    recorded = {path.stem: read_arrays(path) for path in REPLAYS}
    settings = {path.stem: read_about(path)["settings"] for path in REPLAYS}
    assert not recorded["step_cap"]["converged"].all()
    assert recorded["early_stop"]["converged"].all()
    assert {s["stability_threshold"] for s in settings.values()} == {0, 1, 2}
    assert max(len(replay["steps"]) for replay in recorded.values()) >= 3
    assert settings["partial_budget"]["max_new_tokens"] % 12
    sequence = recorded["end_token"]["sequence"]
    end = sequence.tolist().index(settings["end_token"]["eos_token_id"][0])
    assert 8 < end < 15
    assert not sequence[end + 1 :].any()
    assert all(not replay["accepted"].all() for replay in recorded.values())
