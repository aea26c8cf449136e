"""Whatever stops a conversion: never half a result, and resuming gives the same bytes."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from convert_plans import content, plan_of, write_source

from mlx_diffusiongemma.checkpoint import INDEX
from mlx_diffusiongemma.convert.records import Progress
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.errors import ConversionError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("interrupted.py")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("resume") / "source")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory) -> dict[str, bytes]:
    """What a run that nothing stops writes."""
    output = tmp_path_factory.mktemp("whole") / "output"
    run(plan_of(source), output)
    return content(output)


def stop_at(part: float):
    """A progress callback that stops the run, as Ctrl-C does, when this part is done."""

    def progress(progress: Progress) -> None:
        if progress.done_bytes >= part * progress.total_bytes:
            raise KeyboardInterrupt

    return progress


def interrupt(source: Path, output: Path, part: float = 0.6) -> Path:
    """Stop a conversion with some shards finished; returns the folder it worked in."""
    with pytest.raises(KeyboardInterrupt):
        run(plan_of(source), output, progress=stop_at(part))
    return output.with_name(output.name + ".partial")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 1.0])
def test_a_stopped_run_goes_on(source, whole, tmp_path, part):
    interrupt(source, tmp_path / "output", part)
    assert not (tmp_path / "output").exists()
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_finished_shards_are_not_converted_again(source, tmp_path):
    plan = plan_of(source)
    folder = interrupt(source, tmp_path / "output")
    journal = json.loads((folder / "journal.json").read_text())
    finished = set(journal["shards"])
    assert 2 <= len(finished) < len(plan.shards)
    assert {path.name for path in (folder / "result").iterdir()} == finished
    seen: list[Progress] = []
    result = run(plan, tmp_path / "output", resume=True, progress=seen.append)
    expected = [
        tensor.parameter
        for shard in plan.shards
        if shard.file not in finished
        for tensor in shard.tensors
    ]
    assert [progress.tensor for progress in seen] == expected
    assert seen[-1].done_bytes == plan.nbytes
    # The report is that of the whole conversion all the same.
    assert set(result.sha256) == {shard.file for shard in plan.shards}
    assert set(result.errors) == {
        tensor.parameter for tensor in plan.tensors if tensor.quantization
    }


def test_source_files_of_finished_shards_are_not_asked_for(source, tmp_path):
    plan = plan_of(source)
    interrupt(source, tmp_path / "output", 0.9)
    asked: list[Path] = []
    run(plan, tmp_path / "output", resume=True, before_read=asked.append)
    finished_in_last = {info.file for tensor in plan.shards[-1].tensors for info in tensor.sources}
    assert set(asked) <= {info.file for t in plan.tensors for info in t.sources}
    assert finished_in_last <= set(asked)


def test_a_shard_that_changed_is_converted_again(source, whole, tmp_path):
    folder = interrupt(source, tmp_path / "output")
    shards = sorted((folder / "result").iterdir())
    damaged = bytearray(shards[0].read_bytes())
    damaged[-1] ^= 1
    shards[0].write_bytes(damaged)
    os.truncate(shards[1], 100)
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole


def test_what_the_journal_does_not_know_is_removed(source, whole, tmp_path):
    folder = interrupt(source, tmp_path / "output")
    (folder / "result" / "model-00009-of-00009.safetensors.partial").write_bytes(b"half")
    (folder / "result" / "README.md").write_text("from before the interruption")
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole


def test_a_shard_that_is_gone_is_converted_again(source, whole, tmp_path):
    folder = interrupt(source, tmp_path / "output")
    min((folder / "result").iterdir()).unlink()
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole


def test_without_resume_an_interrupted_run_is_in_the_way(source, tmp_path):
    folder = interrupt(source, tmp_path / "output")
    before = content(folder / "result")
    with pytest.raises(ConversionError, match="holds a conversion that was interrupted") as caught:
        run(plan_of(source), tmp_path / "output")
    assert "--resume" in str(caught.value.hint)
    assert content(folder / "result") == before


def test_a_run_that_finished_nothing_is_not_in_the_way(source, whole, tmp_path):
    folder = interrupt(source, tmp_path / "output", 0.0)
    assert not folder.exists()
    run(plan_of(source), tmp_path / "output")
    assert content(tmp_path / "output") == whole


@pytest.mark.parametrize("other", ["recipe", "shards"])
def test_another_plan_does_not_go_on(source, tmp_path, other):
    folder = interrupt(source, tmp_path / "output")
    before = content(folder / "result")
    plan = plan_of(source, "8bit") if other == "recipe" else plan_of(source, shard_bytes=150_000)
    with pytest.raises(ConversionError, match="with other settings or of another model"):
        run(plan, tmp_path / "output", resume=True)
    assert content(folder / "result") == before


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"fingerprint": "x"}', '{"shards": {"a": 1}}', '{"shards":' * 100_000],
    ids=["empty", "cut", "list", "no shards", "no shard", "nested without end"],
)
def test_a_damaged_journal_is_named(source, tmp_path, text):
    folder = interrupt(source, tmp_path / "output")
    (folder / "journal.json").write_text(text)
    with pytest.raises(ConversionError, match="journal.json` cannot be read"):
        run(plan_of(source), tmp_path / "output", resume=True)


def test_resuming_nothing_is_starting(source, whole, tmp_path):
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole


def test_two_at_a_time_are_refused(source, whole, tmp_path):
    refused: list[bool] = []

    def try_another(_: Progress) -> None:
        with pytest.raises(ConversionError, match="another conversion works in"):
            run(plan_of(source), tmp_path / "output", resume=True)
        refused.append(True)

    run(plan_of(source), tmp_path / "output", progress=try_another)
    assert refused
    assert content(tmp_path / "output") == whole


@pytest.mark.parametrize("last", ["lock", "journal.json"])
def test_stopped_after_the_last_rename_is_finished(source, whole, tmp_path, monkeypatch, last):
    """Stopped while the working folder is removed: the journal goes last and explains the rest."""
    unlink = Path.unlink

    def stop(path: Path, missing_ok: bool = False) -> None:
        if path.name == last:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stop)
    with pytest.raises(KeyboardInterrupt):
        run(plan_of(source), tmp_path / "output")
    monkeypatch.undo()
    assert (tmp_path / "output.partial" / "journal.json").exists()
    with pytest.raises(ConversionError, match="exists already"):
        run(plan_of(source), tmp_path / "output")
    result = run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert set(result.sha256) == set(whole) - {INDEX}


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_keeps_what_is_finished(
    source, whole, tmp_path, monkeypatch, call, code
):
    real = getattr(os, call)
    left = 20 if call == "fsync" else 60

    def limited(*arguments: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    monkeypatch.setattr(os, call, limited)
    with pytest.raises(ConversionError, match="the disk of `.*output` is full") as caught:
        run(plan_of(source), tmp_path / "output")
    monkeypatch.undo()
    assert "--resume" in str(caught.value.hint)
    folder = tmp_path / "output.partial"
    finished = json.loads((folder / "journal.json").read_text())["shards"]
    assert finished
    assert not [path for path in (folder / "result").iterdir() if path.suffix == ".partial"]
    run(plan_of(source), tmp_path / "output", resume=True)
    assert content(tmp_path / "output") == whole


# Killed ---------------------------------------------------------------------------------------


def convert(source: Path, output: Path, fatal: int) -> subprocess.CompletedProcess[str]:
    """Convert in another process that kills itself before its n-th change of the disk."""
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(source), str(output), str(fatal)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=120,
    )


def check_kills(source: Path, folder: Path, *, kills: int, seed: int) -> None:
    """Kill conversions at random points, some of them twice, then resume each."""
    done = convert(source, folder / "whole", 0)
    assert done.returncode == 0, done.stderr
    changes = int(done.stdout)
    assert changes > 100
    expected = content(folder / "whole")
    assert INDEX in expected and "config.json" in expected
    random_points = random.Random(seed)
    for number in range(kills):
        output = folder / f"output {number}"
        for _ in range(1 + number % 2):
            point = random_points.randint(1, changes)
            killed = convert(source, output, point)
            assert killed.returncode in (-9, 0), killed.stderr  # 0: fewer changes were left
        working = output.with_name(f"{output.name}.partial")
        assert not output.exists() or content(output) == expected
        if not output.exists() or (working / "journal.json").exists():
            done = convert(source, output, 0)
            assert done.returncode == 0, done.stderr
            assert not working.exists()
        assert content(output) == expected, f"killed before change {point} of {changes}"


def test_three_kills_lose_nothing(source, tmp_path):
    check_kills(source, tmp_path, kills=3, seed=1)


@pytest.mark.slow
def test_twenty_kills_lose_nothing(source, tmp_path):
    check_kills(source, tmp_path, kills=20, seed=2)
