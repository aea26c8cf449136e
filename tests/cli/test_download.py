"""The download display: one line to announce, a bar at a terminal, lines elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from mlx_diffusiongemma.cli import byte_progress, console, download
from mlx_diffusiongemma.hub import DownloadPlan, DownloadProgress

GB = 10**9


def plan(**changes):
    fields = {
        "repo": "org/model",
        "revision": "main",
        "commit": "0" * 40,
        "folder": Path.home() / "cache" / "models--org--model",
        "files": ("config.json", "model.safetensors"),
        "total_bytes": 10 * GB,
        "cached_bytes": 0,
    }
    return DownloadPlan(**fields | changes)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [100.0]
    monkeypatch.setattr(byte_progress.time, "monotonic", lambda: now[0])
    return now


def show(monkeypatch, steps, *, live=False, clock=None, **changes):
    """What the display writes for (seconds, bytes done) reports."""
    out = io.StringIO()
    monkeypatch.setattr(
        console, "stderr", Console(file=out, force_terminal=live, width=100, highlight=False)
    )
    monkeypatch.setattr(console, "is_live", lambda: live)
    with download.DownloadDisplay() as display:
        display.on_plan(plan(**changes))
        for seconds, done in steps:
            if clock:
                clock[0] = 100.0 + seconds
            display.progress(DownloadProgress(done, 10 * GB, "model.safetensors"))
    return out.getvalue()


def test_the_announcement_says_what_how_large_and_where():
    assert download.announce(plan(cached_bytes=GB // 2)) == (
        "downloading org/model (10.0 GB, 500.0 MB already here) to ~/cache/models--org--model"
    )
    assert download.announce(plan(revision="v2", folder=Path("/elsewhere"))) == (
        "downloading org/model at v2 (10.0 GB, 0 B already here) to /elsewhere"
    )


def test_without_a_terminal_there_is_a_line_for_every_tenth(monkeypatch, clock):
    steps = [(0, 0), (1, GB // 2), (10, GB), (16, GB + 1), (25, 5 * GB // 2), (100, 10 * GB)]
    written = show(monkeypatch, steps, clock=clock).splitlines()
    assert written[1:] == [
        "10 % of 10.0 GB, 100.0 MB/s, 1 min 30 s left",
        "25 % of 10.0 GB, 100.0 MB/s, 1 min 15 s left",
        "100 % of 10.0 GB, 100.0 MB/s, 0 s left",
    ]


def test_a_fast_download_has_few_lines(monkeypatch, clock):
    steps = [(percent / 12.5, percent * GB // 10) for percent in range(101)]
    written = show(monkeypatch, steps, clock=clock).splitlines()
    assert [line.split()[0] for line in written[1:]] == ["63", "100"]


def test_a_slow_download_has_a_line_for_every_minute(monkeypatch, clock):
    steps = [(30, 3 * 10**6), (61, 6_100_000), (90, 9 * 10**6), (7200, 720_000_000)]
    written = show(monkeypatch, steps, clock=clock).splitlines()
    assert written[1:] == [
        "0 % of 10.0 GB, 100.0 kB/s, 27 h 45 min left",
        "7 % of 10.0 GB, 100.0 kB/s, 25 h 46 min left",
    ]


def test_what_was_here_before_does_not_count_as_speed(monkeypatch, clock):
    steps = [(0, 5 * GB), (10, 6 * GB)]
    written = show(monkeypatch, steps, clock=clock, cached_bytes=5 * GB).splitlines()
    assert written[1:] == ["60 % of 10.0 GB, 100.0 MB/s, 40 s left"]


def test_a_terminal_shows_bytes_and_file(monkeypatch):
    written = show(monkeypatch, [(0, 0), (0, 5 * GB)], live=True)
    assert "downloading org/model" in written
    assert "5.0/10.0 GB" in written and "model.safetensors" in written
    assert written.removesuffix("\x1b[?25h").endswith("\n"), "the cursor is on a new line"
    assert "\x1b[32m" in written


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    written = show(monkeypatch, [(0, 5 * GB)], live=True)
    assert "5.0/10.0 GB" in written and "\x1b[32m" not in written


def test_nothing_is_written_without_a_download(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(console, "stderr", Console(file=out))
    with download.DownloadDisplay():
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("label", ["layers.29.post_feedforward_layernorm_1", "model.safetensors"])
def test_the_bar_is_one_line_whatever_is_in_work(monkeypatch, width, label):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(console, "stderr", terminal)
    monkeypatch.setattr(console, "is_live", lambda: True)
    view = byte_progress.open_view(154 * GB // 10)
    for done in range(1, 15):
        view.update(done * GB, label)
    view.close()
    assert "\x1b[1A" not in out.getvalue()  # up, to redraw a second line
    last = out.getvalue().rpartition("\x1b[2K")[2]
    assert "14.0/15.4 GB" in last and label[:10] in last
