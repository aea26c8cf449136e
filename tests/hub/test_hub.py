"""hub.py: the three forms of a name, what is downloaded, what the Hub refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import Faults
from hub_runs import (
    FIRST,
    MODEL,
    NAME,
    SMALL,
    TOTAL,
    WEIGHTS,
    content_of,
    leave_snapshot,
    plans,
    progress,
    start,
)

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.errors import ConfigError, HubError

UNWANTED = {
    "README.md": b"# hello",
    "picture.png": b"png",
    "pytorch_model.bin": b"pickle",
    "model.gguf": b"gguf",
    "onnx/model.safetensors": b"elsewhere",
    ".gitattributes": b"",
}


# The three forms of a name.


def test_demo_is_the_model_that_ships(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("demo") == Path(hub.__file__).parent / "demo"
    assert hub.resolve("./demo").resolve() == tmp_path / "demo"


def test_an_existing_folder_comes_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve(NAME) == Path(NAME)
    assert hub.resolve(f"~/{NAME}") == tmp_path / NAME
    assert hub.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["demo", "folder"])
def test_a_folder_has_no_revision(name, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"`{name}` is a folder .* no revision `v1`"):
        hub.resolve(name, revision="v1")


@pytest.mark.parametrize(
    "name",
    ["", "dmeo", "./a/b", "../a/b", "/a/b", "~/a/b", "a/b/", "a/b/c", "a b/c", "https://hub/a/b"],
)
def test_what_is_neither_folder_nor_hub_model_is_named_with_the_three_forms(name):
    with pytest.raises(HubError) as caught:
        hub.resolve(name)
    assert str(caught.value) == f"there is no folder `{name}`, and it is not a Hub model"
    assert all(form in caught.value.hint for form in ("`demo`", "folder", hub.DEFAULT_MODEL))


def test_a_file_is_not_a_model(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(HubError, match=f"model `{file}` is a file"):
        hub.resolve(str(file))


def test_importing_hub_is_cheap():
    costly = "{'mlx.core', 'huggingface_hub', 'transformers'}"
    code = f"import sys, mlx_diffusiongemma.hub; print(*{costly} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


# Downloads that work.


def test_a_model_is_downloaded_once_and_then_needs_ever_less_of_the_hub(fake, resolve, cache):
    commit = fake.add(NAME, WEIGHTS | SMALL | UNWANTED)

    first = resolve()
    assert content_of(first) == MODEL
    assert Path(first["path"]) == cache.snapshot(commit)
    assert set(fake.downloads[-2:]) == set(WEIGHTS) and len(fake.downloads) == len(MODEL)
    [plan] = plans(first)
    assert first["events"][0] == plan
    assert set(plan.pop("files")) == set(MODEL)
    assert plan == {
        "repo": NAME,
        "revision": "main",
        "commit": commit,
        "folder": str(cache.folder),
        "total_bytes": TOTAL,
        "cached_bytes": 0,
    }
    done = [event["done_bytes"] for event in progress(first)]
    assert done == sorted(done) and done[0] == 0 and done[-1] == TOTAL
    assert {event["total_bytes"] for event in progress(first)} == {TOTAL}
    assert {event["file"] for event in progress(first)} == set(MODEL)

    fake.forget_traffic()
    second = resolve()
    assert second["path"] == first["path"] and second["events"] == []
    assert len(fake.requests) == 1  # what the branch is now
    fake.forget_traffic()
    pinned = resolve(revision=commit)
    assert pinned["path"] == first["path"] and pinned["events"] == []
    assert resolve(env={"HF_HUB_OFFLINE": "1"})["path"] == first["path"]
    assert fake.requests == []


def test_a_revision_pins_the_files(fake, resolve):
    old = fake.add(NAME, MODEL)
    fake.add(NAME, MODEL | {"config.json": b'{"newer": true}'})
    pinned, newest = resolve(revision=old), resolve()
    assert content_of(pinned)["config.json"] == MODEL["config.json"]
    assert content_of(newest)["config.json"] == b'{"newer": true}'
    # Weights that both commits share are neither announced nor fetched again.
    assert plans(newest)[0]["cached_bytes"] == TOTAL - len(MODEL["config.json"])
    assert fake.downloads.count(FIRST) == 1
    fake.add(NAME, MODEL | {"README.md": b"only this is new"})
    latest = resolve()
    assert content_of(latest) == MODEL and latest["path"] != pinned["path"]
    assert plans(latest) == []


def test_two_processes_fetch_one_copy(fake, home, resolve):
    fake.add(NAME, MODEL)
    with start(fake.url, home) as other:
        other.stdin.write(json.dumps({"name": NAME}) + "\n")
        other.stdin.flush()
        assert content_of(resolve(env={})) == MODEL
        assert content_of(json.loads(other.communicate(timeout=60)[0])) == MODEL
    assert fake.sent == {name: len(content) for name, content in MODEL.items()}


# What the Hub refuses.


def test_what_does_not_exist_is_said(fake, resolve):
    fake.add(NAME, MODEL)
    fake.add("people/no-config", WEIGHTS)
    fake.add("people/pickled", SMALL | {"pytorch_model.bin": b""})
    answers = [
        resolve("people/typo"),
        resolve("people/typo", token="hf_mine"),
        resolve(revision="v9"),
        resolve("people/no-config"),
        resolve("people/pickled"),
        resolve("people/no--such..name"),
    ]
    assert [answer["error"] for answer in answers] == [
        "the Hub has no model `people/typo`, or it is private",
        "the Hub has no model `people/typo`, or it is private",
        f"`{NAME}` has no revision `v9`",
        "`people/no-config` has no config.json, so it is no model that can run here",
        "`people/pickled` has no *.safetensors files, so it is no model that can run here",
        "`people/no--such..name` cannot be the name of a Hub model",
    ]
    assert all(answer["kind"] == "HubError" and answer["hint"] for answer in answers)
    assert fake.downloads == []


def test_a_gated_model_wants_its_licence_accepted_and_a_token(fake, resolve):
    fake.add(NAME, MODEL, token="hf_right")
    for refused in resolve(), resolve(token="hf_wrong"):
        assert refused["error"] == f"`{NAME}` is gated, and the Hub does not give it to you yet"
        assert f"{fake.url}/{NAME}" in refused["hint"] and "HF_TOKEN" in refused["hint"]
    assert content_of(resolve(token="hf_right")) == MODEL


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (404, f"the Hub has no model `{NAME}`, or it is private"),
        (401, f"`{NAME}` is private or gated, and the Hub does not give it to you"),
    ],
)
def test_refusals_without_the_hubs_own_code_are_understood(status, problem, fake, resolve):
    fake.add(NAME, MODEL)
    fake.faults.status["info"] = status
    refused = resolve()
    assert refused["error"] == problem
    assert "HF_TOKEN" in refused["hint"]


@pytest.mark.parametrize("page", [b"[1]", b"null", b"7", b'{"id": 1, "siblings": 5}'], ids=str)
def test_json_that_is_no_model_is_not_a_hub(page, fake, resolve):
    fake.faults.page = page
    assert "what answers there is not a Hub" in resolve()["error"]


@pytest.mark.parametrize(
    "revision", ["", "../../../../pwned", "a/../b", "a/..", "/etc/pwned", "a//b", ".git", "a\0b"]
)
def test_a_revision_that_leaves_the_cache_is_refused_before_any_request(
    revision, fake, resolve, cache
):
    fake.add(NAME, MODEL)
    refused = resolve(revision=revision)
    assert (refused["kind"], refused["error"]) == ("ConfigError", f"revision is {revision!r}")
    assert refused["hint"] == "revision must be a branch, tag or commit"
    assert fake.requests == [] and not cache.folder.exists()


def test_other_refusals_say_the_status(fake, resolve):
    fake.add(NAME, MODEL)
    fake.faults.status["info"] = 403
    refused = resolve()
    assert refused["error"] == f"the Hub refuses `{NAME}` (HTTP 403)"
    assert "HF_TOKEN" in refused["hint"]


# The Hub is out of reach.


def test_offline_is_said_without_asking_anyone(fake, resolve):
    fake.add(NAME, MODEL)
    answer = resolve(offline=True)
    assert answer["kind"] == "HubError"
    assert answer["error"].startswith(f"`{NAME}` (revision `main`) is not complete on this disk")
    assert "HF_HUB_OFFLINE" in answer["error"] and "HF_HUB_OFFLINE" in answer["hint"]
    assert fake.requests == []


TROUBLES = {
    "refused": ({"endpoint": "http://127.0.0.1:9"}, Faults()),
    "not known": ({"no_dns": True}, Faults()),
    "timed out": ({"env": {"HF_HUB_ETAG_TIMEOUT": "1"}}, Faults(stall={"info"})),
    "HTTP 503": ({}, Faults(status={"info": 503})),
    "not a Hub": ({}, Faults(page=b"<html>Please log in</html>")),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_the_hub_a_copy_serves_with_a_warning(trouble, fake, resolve, cache):
    commit = fake.add(NAME, MODEL)
    conditions, fake.faults = TROUBLES[trouble]
    leave_snapshot(cache, commit)
    answer = resolve(**conditions)
    assert answer["path"] == str(cache.snapshot(commit))
    [warning] = answer["log"]
    assert "cannot be reached (" in warning and trouble in warning and "\n" not in warning
    assert warning.endswith(f"); using `{NAME}` from the cache, commit {commit}")


@pytest.mark.parametrize("trouble", sorted(set(TROUBLES) - {"timed out"}))
def test_without_the_hub_and_a_copy_it_is_an_error(trouble, fake, resolve):
    fake.add(NAME, MODEL)
    conditions, fake.faults = TROUBLES[trouble]
    answer = resolve(**conditions)
    endpoint = conditions.get("endpoint", fake.url)
    assert answer["error"].startswith(f"the Hub at {endpoint} cannot be reached (")
    assert trouble in answer["error"] and "\n" not in answer["error"]
    assert answer["hint"].startswith("check the network") and f"`{NAME}`" in answer["hint"]
