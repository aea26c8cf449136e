"""hub_cache.py: the disk that is too small or not ours, and what counts as complete."""

import shutil
import subprocess

import pytest
from hub_runs import (
    FIRST,
    MODEL,
    NAME,
    SECOND,
    SMALL_BYTES,
    TOTAL,
    content_of,
    progress,
)

from mlx_diffusiongemma.hub_cache import format_size, is_complete

# The disk.


def test_too_little_room_is_said_before_the_download(fake, resolve, home):
    """`shutil.disk_usage` is replaced here; the tmpfs test below has a real one."""
    fake.add(NAME, MODEL)
    short, enough = resolve(free=TOTAL - 1), resolve(free=TOTAL)
    assert short["error"] == f"`{NAME}` needs 800.2 kB more, but `{home}/hf/hub` has 800.2 kB free"
    assert "HF_HOME" in short["hint"] and short["events"] == []
    assert content_of(enough) == MODEL


def test_a_disk_that_fills_up_meanwhile_is_said(fake, resolve):
    """The write error ENOSPC is injected here; the tmpfs test below has a real one."""
    fake.add(NAME, MODEL)
    full = resolve(full_disk=True)
    assert full["kind"] == "HubError"
    assert full["error"].startswith(f"`{NAME}` needs 800.2 kB more, but")
    assert "what has arrived is kept" in full["hint"]


def _can_mount():
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return shutil.which("unshare") and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="needs Linux user namespaces, for a small tmpfs")
def test_a_disk_that_is_really_full(fake, home, resolve):
    """Real: HF_HOME is a tmpfs of 512 KiB, predicted to be too small in one run, full in another.

    The other run gets a wrong answer to the question how much is free, else it would not begin.
    """
    fake.add(NAME, MODEL)
    mount = 'mkdir -p hf && mount -t tmpfs -o size=512k tmpfs hf && exec "$@"'
    wrap = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", mount, "sh"]
    predicted, filled = resolve(wrap=wrap), resolve(wrap=wrap, free=TOTAL)
    assert predicted["error"].endswith("has 524.3 kB free") and predicted["events"] == []
    assert filled["error"].startswith(f"`{NAME}` needs ")
    # The first shard fits, and so does a part of the second one.
    assert SMALL_BYTES + 300_000 < progress(filled)[-1]["done_bytes"] <= 524_288


def test_a_cache_that_cannot_be_written_is_said(fake, home, resolve):
    fake.add(NAME, MODEL)
    (home / "hf").mkdir()
    (home / "hf" / "hub").write_text("a file where the folder should be")
    answer = resolve()
    assert answer["error"].startswith(f"cannot write `{home}/hf/hub/")
    assert "HF_HOME" in answer["hint"]


# What counts as complete.


def test_a_snapshot_is_complete_when_nothing_it_names_is_missing(tmp_path):
    for name, content in MODEL.items():
        (tmp_path / name).write_bytes(content)
    assert is_complete(tmp_path)
    for name in ("config.json", "tokenizer.json", FIRST, SECOND):
        (tmp_path / name).rename(tmp_path / "away")
        assert not is_complete(tmp_path)
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
        assert not is_complete(tmp_path)
        (tmp_path / "away").replace(tmp_path / name)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert not is_complete(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert is_complete(tmp_path)
    for damaged in "{", 100_000 * "[":
        (tmp_path / "model.safetensors.index.json").write_text(damaged)
        assert not is_complete(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (15_400_000_000, "15.4 GB"),
        (2_000_000_000_000, "2.0 TB"),
    ],
)
def test_sizes_are_decimal(size, text):
    assert format_size(size) == text
