"""Traces as files: what is written comes back, and every way to be wrong is one clear error."""

import json
import re
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
from recordings import tiny_folder
from safetensors.numpy import save_file
from small_traces import SMALL_SUITE, TRACES, random_trace

from mlx_diffusiongemma.errors import TraceError
from mlx_diffusiongemma.parity.facts import check_same_model, model_facts
from mlx_diffusiongemma.parity.layout import expected_arrays
from mlx_diffusiongemma.parity.trace import Manifest, Trace
from mlx_diffusiongemma.parity.trace_file import FORMAT, VERSION, read_trace, write_trace


@pytest.fixture(scope="module")
def trace():
    return random_trace()


def test_what_is_written_comes_back(tmp_path, trace):
    size = write_trace(tmp_path / "a.trace", trace)
    again = read_trace(tmp_path / "a.trace")
    assert size == (tmp_path / "a.trace").stat().st_size
    assert again.manifest == trace.manifest
    assert set(again.arrays) == set(trace.arrays) == set(expected_arrays(trace.manifest))
    for name, array in trace.arrays.items():
        assert np.array_equal(again.arrays[name], array) and again.arrays[name].dtype == array.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["a.trace"]


def written(path, trace, **metadata):
    """A file with other metadata than `write_trace` would give it."""
    usual = {"format": FORMAT, "version": str(VERSION), "manifest": trace.manifest.to_json()}
    save_file(dict(trace.arrays), path, metadata=usual | metadata)
    return path


def refused(path, match):
    with pytest.raises(TraceError, match=match) as raised:
        read_trace(path)
    assert raised.value.hint and len(str(raised.value)) < 400
    return raised.value


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_file_that_was_cut_short(tmp_path, trace, share):
    write_trace(tmp_path / "a", trace)
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[: int(len(data) * share)])
    refused(tmp_path / "a", "is no trace, or it was cut short")


def test_a_number_that_was_changed_on_the_way(tmp_path, trace):
    """One bit of a float or of a token: both stay what a trace may hold."""
    write_trace(tmp_path / "a", trace)
    data = (tmp_path / "a").read_bytes()
    for name in ("passes/long/denoise/layers/1/routed", "passes/long/canvas"):
        place = data.index(trace.arrays[name].tobytes())
        changed = bytearray(data)
        changed[place] ^= 1
        (tmp_path / "a").write_bytes(changed)
        refused(tmp_path / "a", "is not as it was written")


def test_a_manifest_that_was_changed_on_the_way(tmp_path, trace):
    write_trace(tmp_path / "a", trace)
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data.replace(b"cpu", b"gpu"))
    refused(tmp_path / "a", "is not as it was written")


def test_the_first_files_had_no_digest(tmp_path, trace):
    assert read_trace(written(tmp_path / "a", trace)).manifest == trace.manifest


def test_another_safetensors_file(tmp_path, trace):
    refused(written(tmp_path / "a", trace, format="pt"), "is no parity trace")


@pytest.mark.parametrize(("version", "hint"), [("2", "update"), ("0", "again"), ("", "again")])
def test_another_version(tmp_path, trace, version, hint):
    path = written(tmp_path / "a", trace, version=version)
    assert hint in refused(path, f"version '{version}' of the layout").hint


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("cases"),
        lambda values: values["model"].pop("weights"),
        lambda values: values["model"]["architecture"].update(vocab_size="many"),
        lambda values: values["model"]["architecture"].update(head_dims=4),
        lambda values: values["sampling"].update(positions=-1),
        lambda values: values["producer"].update(precision="fp12"),
        lambda values: values["generations"][0]["settings"].update(t_min=9.0),
        lambda values: values["generations"][0].update(colour="red"),
        lambda values: values["generations"][0].update(settings=[]),
        lambda values: values["model"]["architecture"].update(key_value_heads=[1]),
        lambda values: values["model"]["architecture"].update(hidden_size=2**63),
        lambda values: values["cases"][0].update(prompt_tokens=10**12),
        lambda values: values["producer"].update(versions={"python": None}),
        lambda values: values.update(producer="mlx"),
        lambda values: values.update(model=7),
        lambda values: values.update(cases=[[]]),
        lambda values: values.update(sampling=[1] * 10_000),
    ],
)
def test_a_manifest_with_a_wrong_field(tmp_path, trace, change):
    values = json.loads(trace.manifest.to_json())
    change(values)
    refused(written(tmp_path / "a", trace, manifest=json.dumps(values)), "manifest|precision")


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "[" * 100_000, '{"model":' * 100_000])
def test_a_manifest_that_is_no_json_object(tmp_path, trace, text):
    refused(written(tmp_path / "a", trace, manifest=text), "manifest is damaged")


def test_a_header_that_is_nested_without_end(tmp_path):
    header = b'{"a":' * 100_000
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(tmp_path / "a", "is no trace, or it was cut short")


@pytest.mark.parametrize("counts", [[4, 4, 5], [12, 0, 0], [13, 4, -5]])
def test_steps_that_do_not_add_up(tmp_path, trace, counts):
    arrays = dict(trace.arrays) | {"generations/story/steps": np.array(counts, np.int32)}
    refused(written(tmp_path / "a", Trace(trace.manifest, arrays)), "has 12 steps, and canvases")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda a, name: a.pop(name), "`{}` is missing"),
        (lambda a, name: a.update({name: a[name][:-1]}), "`{}` is int32"),
        (lambda a, name: a.update({name: a[name].astype(np.int64)}), "`{}` is int64"),
        (lambda a, name: a.update(other=a[name]), "`other` is unknown"),
    ],
)
def test_arrays_that_are_not_those_of_the_manifest(tmp_path, trace, change, match):
    arrays = dict(trace.arrays)
    change(arrays, "passes/long/prompt")
    changed = Trace(trace.manifest, arrays)
    refused(written(tmp_path / "a", changed), match.format("passes/long/prompt"))
    with pytest.raises(TraceError, match="the recording is damaged"):
        write_trace(tmp_path / "b", changed)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite(tmp_path, trace, number):
    name = "passes/long/denoise/layers/1/routed"
    arrays = dict(trace.arrays) | {name: trace.arrays[name].copy()}
    arrays[name][0, 0] = number
    refused(written(tmp_path / "a", Trace(trace.manifest, arrays)), f"not finite: `{name}`")


def test_tokens_and_experts_that_do_not_exist(tmp_path, trace):
    for name, value in (("passes/long/canvas", 321), ("passes/long/prompt/layers/0/experts", -1)):
        arrays = dict(trace.arrays) | {name: trace.arrays[name].copy()}
        arrays[name].flat[0] = value
        refused(written(tmp_path / "a", Trace(trace.manifest, arrays)), f"out of range: `{name}`")


def test_a_trace_of_another_model_is_refused_with_what_differs(trace):
    facts = trace.manifest.model
    check_same_model(facts, replace(facts, weights="others", name="org/fine-tuned"))
    for change, match in (
        ({"vocab_size": 400}, "vocab_size is 400, not 321"),
        ({"head_dims": (16, 16)}, r"head_dims is \(16, 16\), not"),
        ({"sliding_window": 9}, "sliding_window is 9, not 8"),
    ):
        other = replace(facts, architecture=replace(facts.architecture, **change))
        with pytest.raises(TraceError, match=match):
            check_same_model(facts, other)


def test_the_manifest_of_a_folder_names_no_path_and_no_user(trace):
    assert trace.manifest.model.name == ""
    text = trace.manifest.to_json()
    assert "/" not in text.replace(SMALL_SUITE.questions[0].text, "")
    assert Manifest.from_json(text) == trace.manifest


@pytest.mark.parametrize("path", sorted(TRACES.iterdir()), ids=lambda path: path.stem)
def test_the_shipped_files_name_no_path(path):
    """The whole header, with the names of all arrays, and not only what the program puts in."""
    data = path.read_bytes()
    header = data[8 : 8 + struct.unpack("<Q", data[:8])[0]].decode()
    assert not re.search(r"(?<![\w}])/(?:home|Users|root|tmp)|[A-Z]:\\\\|~/", header)


def test_a_folder_of_the_hub_cache_gives_its_public_name_alone(tmp_path):
    folder = tmp_path / "someone" / "models--org--name" / "snapshots" / ("a" * 40)
    shutil.copytree(tiny_folder("small_window"), folder)
    facts = model_facts(folder, "org/name")
    assert (facts.name, facts.revision) == ("org/name", "a" * 40)
    assert model_facts(folder, str(folder)).name == ""
    trace = Trace(replace(random_trace().manifest, model=facts), random_trace().arrays)
    write_trace(tmp_path / "trace", trace)
    assert b"someone" not in (tmp_path / "trace").read_bytes()
