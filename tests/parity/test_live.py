"""The checks of the fixtures, live against the transformers that is installed, on fresh inputs."""

from dataclasses import asdict, replace

import numpy as np
import our_passes
import our_replay
import pytest
from recordings import FIXTURES, case_names, read_about, read_arrays, read_case, tiny_folder
from tolerances import PARITY

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.runtime import load_model

torch = pytest.importorskip("torch", reason="torch is not installed; `make parity` runs these")
pytest.importorskip("transformers")

from tools.reference import cases, margins, passes, replay, tiny  # noqa: E402
from tools.reference.settings import Settings  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # on models this small, threads only wait for each other

OTHER_SEED = 50_000  # away from those of the fixtures
TINY = {model.name: model for model in tiny.TINY_MODELS}
PASS_CASES = [(name, case) for name, some in cases.PASS_CASES.items() for case in some]


def compare(folder, recording) -> None:
    assert not our_passes.failures(
        our_passes.errors(load_model(folder, dtype="float32"), recording)
    )


@pytest.mark.parametrize(
    ("name", "case"), [pytest.param(*pair, id=f"{pair[0]}-{pair[1].name}") for pair in PASS_CASES]
)
def test_both_passes_match_on_other_prompts(name, case):
    reference = passes.load(tiny_folder(name))
    recording, _ = passes.record_safely(
        reference, case.length, batch=case.batch, first_seed=OTHER_SEED + case.length
    )
    compare(tiny_folder(name), recording)


@pytest.mark.parametrize("layout", ["released", "saved", "sharded"])
@pytest.mark.parametrize("name", cases.PASS_CASES)
def test_both_passes_match_for_other_weights_in_every_layout(tmp_path, name, layout):
    model = replace(TINY[name], layout=layout, seed=OTHER_SEED)
    tiny.build(model, tmp_path)
    length = 2 * model.sliding_window + 3
    recording, _ = passes.record_safely(passes.load(tmp_path), length, first_seed=OTHER_SEED)
    compare(tmp_path, recording)


@pytest.mark.parametrize("case", cases.REPLAY_CASES, ids=lambda case: case.name)
def test_other_generations_make_the_same_decisions(case):
    folder = tiny_folder(case.model)
    reference, exact = passes.load(folder), passes.load(folder, torch.float64)
    prompt = passes.draw_inputs(reference, case.prompt_length, seed=OTHER_SEED)["prompt"]
    recorded, _, _ = margins.record_safely(
        reference, exact, prompt, case.settings, first_seed=OTHER_SEED
    )
    ours = load_model(folder, dtype="float32")
    assert our_replay.differences(ours, recorded, asdict(case.settings)) == []


@pytest.mark.parametrize("name", cases.DEMO_PROMPTS)
def test_the_demo_model_answers_alike_from_another_seed(name):
    folder = hub.resolve(hub.DEMO)
    path = FIXTURES / "demo" / f"{name}.safetensors"
    settings = Settings(**read_about(path)["settings"])
    reference, exact = passes.load(folder), passes.load(folder, torch.float64)
    recorded, _, _ = margins.record_safely(
        reference, exact, read_arrays(path)["prompt"], settings, first_seed=OTHER_SEED
    )
    ours = load_model(folder, dtype="float32")
    assert our_replay.differences(ours, recorded, asdict(settings)) == []


@pytest.mark.parametrize("name", cases.PASS_CASES)
def test_the_pass_fixtures_are_what_transformers_still_computes(name):
    path = FIXTURES / "passes" / f"{name}.safetensors"
    reference = passes.load(tiny_folder(name))
    for case in case_names(path):
        stored = read_case(path, case)
        inputs = {key: stored[key] for key in passes.INPUTS}
        again = passes.record(reference, inputs, previous=stored["denoise/logits"])
        assert set(again) == set(stored)
        for key in (key for key in stored if key.endswith("/logits")):
            assert np.abs(again[key] - stored[key]).max() < PARITY["logits"], key


@pytest.mark.parametrize("case", cases.REPLAY_CASES, ids=lambda case: case.name)
def test_the_replay_fixtures_are_what_transformers_still_decides(case):
    path = FIXTURES / "replays" / f"{case.name}.safetensors"
    stored, about = read_arrays(path), read_about(path)
    reference = passes.load(tiny_folder(case.model))
    settings = Settings(**about["settings"])
    again, _ = replay.record(reference, stored["prompt"], settings, given=stored)
    for name in ("steps", "converged", "argmax", "accepted", "sequence"):
        assert np.array_equal(again[name], stored[name]), name


def test_the_recorder_and_the_comparison_use_one_temperature():
    assert passes.TEMPERATURE == our_passes.TEMPERATURE
