"""hub_remote.py: converting a Hub model file by file, and sending a folder to the Hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from fake_upload import UploadHub

from mlx_diffusiongemma import hub_remote
from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.errors import ConfigError

NAME = "people/tiny-diffusion"
CLIENT = Path(__file__).with_name("remote_client.py")


@pytest.fixture(scope="module")
def upload_hub():
    with UploadHub() as running:
        yield running


@pytest.fixture
def source(tmp_path):
    """A checkpoint in four shards, each with layers of its own."""
    values = tiny.config_values()
    tensors = tiny.random_tensors(values)
    shards = [{}, {}, {}, {}]
    for name, array in tensors.items():
        layer = next((index for index in range(3) if f".layers.{index}." in name), 3)
        shards[layer][name] = array
    folder = tiny.write_checkpoint(tmp_path / "source", values, *shards)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def ask(upload_hub, tmp_path):
    """One call of the client, whose Hub cache is `tmp_path`/hf."""

    def run(token=None, command=(), offline=False, **call):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        ours = {
            "HF_ENDPOINT": upload_hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        if token:
            ours["HF_TOKEN"] = token
        if offline:
            ours["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(
            [sys.executable, *(command or [CLIENT])],
            env=kept | ours,
            input=json.dumps({"name": NAME, **call}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert command or done.returncode == 0, done.stderr
        return done if command else json.loads(done.stdout)

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_low_disk_gives_the_same_and_never_holds_all_files(upload_hub, source, ask, tmp_path):
    files = contents(source)
    upload_hub.reset()
    upload_hub.add(NAME, files)
    answer = ask(output=str(tmp_path / "out"), recipe="mixed-4-8")
    weights = {name: len(content) for name, content in files.items() if "safetensors" in name}
    # The embedding's file and one layer's are needed at a time, besides the small files.
    assert answer["most"] < sum(sorted(weights.values())[-2:]) + 100_000 < sum(weights.values())
    assert (answer["left"], answer["work"]) == ([], False)
    convert_checkpoint(source, tmp_path / "whole", "mixed-4-8", max_shard_bytes=100_000)
    expected = contents(tmp_path / "whole")
    ours = contents(tmp_path / "out")
    assert f"base_model: {NAME}" in ours.pop("README.md").decode()
    expected.pop("README.md")
    assert ours == expected


@pytest.mark.parametrize("is_ours", [False, True])
def test_what_was_in_the_cache_before_stays(upload_hub, source, ask, tmp_path, is_ours):
    """Unless an interrupted run had fetched it."""
    files = contents(source)
    upload_hub.reset()
    commit = upload_hub.add(NAME, files)
    kept = tmp_path / "hf" / "hub" / f"models--{NAME.replace('/', '--')}" / "snapshots" / commit
    kept.mkdir(parents=True)
    name = "model-00002-of-00004.safetensors"
    (kept / name).write_bytes(files[name])
    if is_ours:
        (tmp_path / ".out.source").mkdir()
        (tmp_path / ".out.source" / f"{name}.fetched").touch()
    answer = ask(output=str(tmp_path / "out"), recipe="bf16")
    assert answer["left"] == ([] if is_ours else [name])
    assert upload_hub.sent[name] == 0


def test_a_download_that_fails_is_one_clear_error(upload_hub, source, ask, tmp_path):
    upload_hub.reset()
    upload_hub.add(NAME, contents(source))
    upload_hub.faults.status["model-00002-of-00004.safetensors"] = 403
    answer = ask(output=str(tmp_path / "out"), recipe="bf16")
    assert answer["kind"] == "HubError" and not (tmp_path / "out").exists()
    upload_hub.faults.status.clear()
    upload_hub.add("people/odd", contents(source) | {"model-00002-of-00004.safetensors": b"x" * 50})
    answer = ask(name="people/odd", output=str(tmp_path / "odd"), recipe="bf16")
    assert "model-00002-of-00004.safetensors" in answer["error"]
    assert "no safetensors header" in answer["error"]


def test_a_dry_run_fetches_headers_only(upload_hub, source, ask, tmp_path):
    upload_hub.reset()
    upload_hub.add(NAME, contents(source))
    convert = ("-m", "mlx_diffusiongemma", "convert", NAME)
    done = ask(command=(*convert, "--dry-run"))
    assert done.returncode == 0, done.stderr
    assert "source tensors: 76 = 76 used" in done.stdout
    assert not list((tmp_path / "hf").rglob("*.safetensors"))
    # Something in the way of the output is said before the Hub is asked.
    upload_hub.forget_traffic()
    done = ask(command=(*convert, "--out", str(source)))
    assert done.returncode == 1 and "exists already" in done.stderr
    assert upload_hub.requests == []


def test_a_hub_model_is_converted_like_a_folder(upload_hub, source, ask, tmp_path):
    upload_hub.reset()
    upload_hub.add(NAME, contents(source))
    done = ask(
        command=("-m", "mlx_diffusiongemma", "convert", NAME, "--out", str(tmp_path / "out"))
    )
    assert done.returncode == 0, done.stderr
    convert_checkpoint(source, tmp_path / "whole", "mixed-4-8")
    ours, expected = contents(tmp_path / "out"), contents(tmp_path / "whole")
    assert f"[{NAME}](" in ours.pop("README.md").decode() and expected.pop("README.md")
    assert ours == expected


@pytest.mark.parametrize("flags", [["--low-disk"], ["--dry-run"]])
def test_without_a_network_it_is_one_clear_error(ask, tmp_path, flags):
    convert = ("-m", "mlx_diffusiongemma", "convert", NAME, "--out", str(tmp_path / "out"))
    done = ask(command=(*convert, *flags), offline=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[0].startswith("error: HF_HUB_OFFLINE forbids")
    assert "hint: " in done.stderr and not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("name", ["demo", "./folder", "a/b/c"])
def test_only_hub_models_are_fetched_file_by_file(name, tmp_path):
    with pytest.raises(ConfigError, match="is not a Hub model"):
        hub_remote.open_remote(name, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_folder_is_sent_whole_and_again(upload_hub, source, ask):
    upload_hub.reset()
    for _ in range(2):
        answer = ask(upload=str(source), name="me/model", token="may-write")
        assert answer == {"page": f"{upload_hub.url}/me/model"}
    sent = {name: data for name, data in upload_hub.received["me/model"].items()}
    assert sent == contents(source)


def test_a_hub_that_refuses_leaves_the_folder_and_says_what_to_do(upload_hub, source, ask):
    before = contents(source)
    answer = ask(upload=str(source), name="me/model", token="may-read")
    assert answer["kind"] == "HubError" and "`me/model`" in answer["error"]
    assert f"hf upload me/model {source}" in answer["hint"]
    assert "cannot be the name" in ask(upload=str(source), name="not a name")["error"]
    assert contents(source) == before


@pytest.mark.parametrize(
    ("repo", "asked", "message"),
    [
        ("model", {"token": "may-write"}, "`model` cannot be the name of a Hub model"),
        ("me/model", {"token": "may-write", "offline": True}, "HF_HUB_OFFLINE forbids to send"),
        ("me/model", {}, "there is no token to send `me/model` with"),
        ("me/model", {"token": "wrong"}, "does not say who would send `me/model` (HTTP 401)"),
    ],
)
def test_an_upload_that_cannot_work_is_refused_before_the_conversion(
    upload_hub, source, ask, tmp_path, repo, asked, message
):
    upload_hub.reset()
    convert = ("-m", "mlx_diffusiongemma", "convert", str(source), "--out", str(tmp_path / "out"))
    done = ask(command=(*convert, "--upload-repo", repo), **asked)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and message in done.stderr.splitlines()[0]
    assert "hint: " in done.stderr and not (tmp_path / "out").exists()


def test_what_was_converted_is_uploaded(upload_hub, source, ask, tmp_path):
    upload_hub.reset()
    convert = ("-m", "mlx_diffusiongemma", "convert", str(source), "--out", str(tmp_path / "out"))
    done = ask(command=(*convert, "--upload-repo", "me/converted"), token="may-write")
    assert done.returncode == 0, done.stderr
    assert f"uploaded to {upload_hub.url}/me/converted" in done.stderr
    assert upload_hub.received["me/converted"] == contents(tmp_path / "out")
    # The Hub refuses in the end: the folder is complete, and that is said.
    other = [*convert[:-1], str(tmp_path / "other"), "--upload-repo", "me/other"]
    done = ask(command=other, token="may-read")
    assert done.returncode == 1 and "did not take" in done.stderr
    assert "hf upload me/other" in done.stderr
    assert contents(tmp_path / "other") == contents(tmp_path / "out")


def low_disk(tmp_path, *flags):
    convert = ("-m", "mlx_diffusiongemma", "convert", NAME, "--out", str(tmp_path / "out"))
    return (*convert, "--low-disk", "--max-shard-size", "100kB", *flags)


def test_low_disk_goes_on_after_a_break_and_notices_another_commit(
    upload_hub, source, ask, tmp_path
):
    upload_hub.reset()
    upload_hub.add(NAME, contents(source))
    assert ask(output=str(tmp_path / "out"), recipe="mixed-4-8", stop=0.6) == {"stopped": True}
    assert (tmp_path / "out.partial").exists()
    # Without --resume nothing is asked of the Hub: the interrupted run is in the way.
    upload_hub.forget_traffic()
    done = ask(command=low_disk(tmp_path))
    assert done.returncode == 1 and "was interrupted" in done.stderr
    assert upload_hub.requests == []
    files = contents(source)
    changed = bytearray(files["model-00002-of-00004.safetensors"])
    changed[-1] ^= 1
    upload_hub.add(NAME, files | {"model-00002-of-00004.safetensors": bytes(changed)})
    done = ask(command=low_disk(tmp_path, "--resume"))
    assert done.returncode == 1
    assert "the source changed: `model-00002-of-00004.safetensors`" in done.stderr
    upload_hub.add(NAME, files)
    done = ask(command=low_disk(tmp_path, "--resume"))
    assert done.returncode == 0, done.stderr
    convert_checkpoint(source, tmp_path / "whole", "mixed-4-8", max_shard_bytes=100_000)
    ours, expected = contents(tmp_path / "out"), contents(tmp_path / "whole")
    assert ours | {"README.md": b""} == expected | {"README.md": b""}
    assert not list(tmp_path.glob(".out.*"))
    # What the interrupted run had fetched is deleted by the one that goes on.
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


def test_a_plan_that_is_refused_leaves_nothing_behind(upload_hub, source, ask, tmp_path):
    upload_hub.reset()
    upload_hub.add(NAME, contents(source))
    done = ask(command=low_disk(tmp_path, "--set", "nothing=4"))
    assert done.returncode == 1 and "matches 'nothing'" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "hf"}
