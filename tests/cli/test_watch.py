"""The live canvas on a terminal made of a string: rows, frame rate, what stays on the screen."""

import io
import re

import pytest
from fake_runtime import END, FakeTokenizer, answer, block, step
from rich.console import Console, Group

from mlx_diffusiongemma.cli import render, watch
from mlx_diffusiongemma.cli.canvas import CanvasReader

MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 20 columns and 8 rows in place of standard error."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=20,
        height=8,
        _environ={"TERM": "xterm-256color"},
    )
    for module in (watch, render):
        monkeypatch.setattr(module, "stderr", console)
    return console


def live(clock=None):
    clock = clock or Clock()
    return watch.LiveCanvas(CanvasReader(FakeTokenizer().decode, {END}, clock), clock)


def rows(drawing: Group) -> list[str]:
    return [row for text in drawing.renderables for row in text.plain.split("\n")]


def draw(view, event, held=""):
    return rows(view._draw(view._reader.read(event), held))


def written(terminal) -> str:
    """All text since the last call, without escape sequences."""
    text = MOVES.sub("", terminal.file.getvalue())
    terminal.file.seek(0)
    terminal.file.truncate()
    return text


def test_the_region_wraps_to_the_width_and_never_fills_the_screen(terminal):
    view = live()
    drawing = draw(view, step([1, *[8, 3] * 9], [1] * 19))
    assert all(len(row) <= 20 for row in drawing)
    assert len(drawing) == 7
    assert drawing[0].startswith("Hello frog world")
    assert re.fullmatch(r"… \d+ more rows", drawing[1])


def test_the_progress_line_never_moves_up(terminal):
    view = live()
    tall = draw(view, step([8] * 9, [1] * 9))
    low = draw(view, step([8] + [END] * 8, [1] * 9, step=1))
    assert len(low) == len(tall)
    assert low[0] == " frog"


def test_held_text_leads_to_the_canvas_and_leaves_first_when_space_is_short(terminal):
    view = live()
    assert draw(view, step([8], [1]), "Once a")[0] == "Once a frog"
    full = draw(view, step([8], [1]), "one two three four, " * 9 + "a")
    assert full[:2] == ["one two three four, ", "a frog"]


def test_frames_come_at_most_fifteen_times_a_second(terminal):
    clock = Clock()
    view = live(clock)
    view.step(step([8], [1]), "")
    assert "step 1/4" in written(terminal)
    clock.now = 0.05
    view.step(step([8], [1], step=1), "")
    assert written(terminal) == ""
    clock.now = 0.1
    view.step(step([8], [1], step=2), "")
    assert "step 3/4" in written(terminal)
    view.close()


def test_a_committed_block_clears_the_region_and_shows_the_cursor(terminal):
    view = live()
    view.step(step([8], [1]), "")
    view.commit(block("frog"))
    _, cleared = terminal.file.getvalue().split("\x1b[?25h")
    assert cleared == "\r" + "\x1b[1A\x1b[2K" * 6  # canvas, empty row, progress in four rows
    view.close()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError()])
def test_whatever_happens_the_cursor_comes_back(terminal, failure, capsys):
    def events():
        yield step([8], [1])
        raise failure

    with pytest.raises(type(failure)):
        render.follow(events(), render.Transcript(hold_partial_lines=True), live())
    assert terminal.file.getvalue().rindex("\x1b[?25h") > terminal.file.getvalue().rindex(
        "\x1b[?25l"
    )


def test_without_colour_underline_and_dots_remain(terminal):
    terminal.no_color = True
    live().step(step([1, 8], [1, 0]), "")
    shown = terminal.file.getvalue()
    assert "\x1b[4mHello\x1b[0m" in shown and "····" in shown
    assert "\x1b[33" not in shown and "\x1b[36" not in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_text_that_would_share_the_terminal_is_held_until_its_line_is_complete(
    terminal, monkeypatch, capsys, is_terminal
):
    seen = []

    class Spy(watch.CanvasLog):
        def step(self, event, held):
            seen.append((held, capsys.readouterr().out))

    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    transcript = render.Transcript(hold_partial_lines=True)
    reader = CanvasReader(FakeTokenizer().decode, {END}, Clock())
    render.follow(iter(answer("One\nTw", "o\nThr", "ee")), transcript, Spy(reader))
    held, out = zip(*seen[::2], strict=True)
    rest = capsys.readouterr().out
    if is_terminal:
        assert (held, out, rest) == (("", "Tw", "Thr"), ("", "One\n", "Two\n"), "Three\n")
    else:
        assert (held, out, rest) == (("", "", ""), ("", "One\nTw", "o\nThr"), "ee\n")
