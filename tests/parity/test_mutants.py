"""Each known fault makes a parity check fail, and the model without it passes the same checks."""

import mutants
import our_passes
import our_replay
import pytest
from recordings import FIXTURES, read_about, read_arrays, read_case, tiny_folder

from mlx_diffusiongemma.runtime import load_model

# The recordings that are enough to notice every fault: prompts longer than the window.
PASSES = FIXTURES / "passes" / "small_window.safetensors"
REPLAY = FIXTURES / "replays" / "step_cap.safetensors"
FAULTS = {name.partition(":")[0] for name in mutants.MUTANTS}
NOTICED_BY = dict.fromkeys(mutants.MUTANTS, "logits") | {
    # The norm after the experts takes a common factor of a token's weights out again.
    "top-k weights not renormalised": "weights",
    "raw logits fed back": "replay",  # the fault is in the loop, not in the model
}


def failing_checks(model) -> set[str]:
    """Which of the checks fail: names of quantities, and "replay"."""
    found = our_passes.errors(model, read_case(PASSES, "length-19"))
    failing = {name.partition("/")[2] for name in our_passes.failures(found)}
    settings = read_about(REPLAY)["settings"]
    if our_replay.differences(model, read_arrays(REPLAY), settings):
        failing.add("replay")
    return failing


def load():
    return load_model(tiny_folder("small_window"), dtype="float32")


def test_the_model_itself_passes():
    assert failing_checks(load()) == set()


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_mutant_fails(name, monkeypatch):
    model = load()
    mutants.MUTANTS[name](model, monkeypatch)
    assert NOTICED_BY[name] in failing_checks(model)


def test_all_sixteen_faults_are_tried():
    assert len(FAULTS) == 16
