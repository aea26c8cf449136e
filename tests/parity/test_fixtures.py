"""The fixtures are what the manifest says, small, and of the demo model in the package."""

import hashlib

import pytest
from recordings import FIXTURES, MANIFEST, read_about

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.trace_file import read_trace

FILES = {name: facts for section in MANIFEST.values() for name, facts in section["files"].items()}
NOT_RECORDED = {"MANIFEST.json", "README.md"}
DEMO = sorted([*FIXTURES.glob("demo/*.safetensors"), *FIXTURES.glob("left_to_right/demo_*")])


def sha256(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_fixture_is_the_one_that_was_recorded(name):
    assert sha256(FIXTURES / name) == FILES[name]["sha256"]
    assert FILES[name]["bytes"] < 1_000_000


def test_nothing_else_lies_among_the_fixtures():
    files = [path for path in FIXTURES.rglob("[!.]*") if path.is_file()]
    on_disk = {path.relative_to(FIXTURES).as_posix() for path in files}
    assert on_disk == set(FILES) | NOT_RECORDED
    assert sum(facts["bytes"] for facts in FILES.values()) < 7_000_000


def test_the_trace_of_the_demo_is_of_the_model_in_the_package():
    recorded = read_trace(FIXTURES / "traces" / "demo.safetensors").manifest.model
    assert recorded == model_facts(hub.resolve(hub.DEMO), hub.DEMO), (
        "it was recorded from another demo model: run `python tools/make_fixtures.py --only traces`"
    )


@pytest.mark.parametrize("section", sorted(MANIFEST))
def test_the_manifest_says_what_recorded_a_section(section):
    recorder = {"mlx_vlm": "mlx-vlm"}.get(section, "transformers")
    assert MANIFEST[section]["versions"][recorder]
    assert MANIFEST[section]["facts"]


@pytest.mark.parametrize("path", DEMO, ids=lambda path: path.stem)
def test_the_demo_recordings_are_of_the_demo_model_in_the_package(path):
    folder = hub.resolve(hub.DEMO)
    for name, digest in read_about(path)["source"].items():
        assert sha256(folder / name) == digest, (
            f"{path.name} was recorded from another {name} of the demo model: "
            "run `python tools/make_fixtures.py --only demo --only left_to_right`"
        )
