"""The tiny models against transformers with every kernel in place of its twin."""

import emulated
import our_passes
import our_replay
import pytest
from recordings import FIXTURES, read_about, read_arrays, read_case, tiny_folder

from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.runtime import load_model

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("small_window", "length-19"),
        ("middle_window", "length-51"),
        ("wide_window", "length-17-batch-2"),
    ],
)
def test_both_passes_match_transformers(name, case):
    launched = set()

    def run(launch: dispatch.Launch):
        launched.add(launch.kernel.name)
        return emulated.run(launch)

    recording = read_case(FIXTURES / "passes" / f"{name}.safetensors", case)
    model = load_model(tiny_folder(name), dtype="float32")
    with dispatch.forced(run):
        found = our_passes.errors(model, recording)
    assert not our_passes.failures(found)
    one_for_each = {"prepare_heads", "add_attention", "route", "geglu", "add_feed_forward"}
    one_for_each |= {"probabilities", "soft_norm", "condition"}
    assert one_for_each <= launched


def test_a_whole_generation_matches_transformers():
    path = FIXTURES / "replays" / "early_stop.safetensors"
    about = read_about(path)
    model = load_model(tiny_folder(about["model"]), dtype="float32")
    launched = set()

    def run(launch: dispatch.Launch):
        launched.add(launch.kernel.name)
        return emulated.run(launch, "fast")

    with dispatch.forced(run):
        assert our_replay.differences(model, read_arrays(path), about["settings"]) == []
    assert {"logit_statistics", "accept_within_bound", "renew"} <= launched
