"""Classes of tokens, their looks and the progress line: pure, no terminal."""

import pytest
from fake_runtime import END, FakeTokenizer, block, step

from mlx_diffusiongemma.cli.canvas import (
    CanvasReader,
    Frame,
    canvas_cells,
    plain,
    progress,
    styled,
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def reader(clock=None):
    return CanvasReader(FakeTokenizer().decode, {END}, clock or Clock())


def frame(*cells, **changes):
    values = dict(canvas=1, step=3, max_steps=24, accepted=0.5, entropy=0.25)
    return Frame(cells=cells, tokens_per_second=81.6, **values | changes)


def test_a_token_is_settled_when_accepted_again_changing_when_new_noise_when_renoised():
    cells = canvas_cells([5, 5, 5, 5], [5, 6, 5, 6], [True, True, False, False])
    assert cells == ["settled", "changing", "noise", "noise"]


def test_nothing_is_settled_in_the_first_step():
    assert canvas_cells(None, [5, 6], [True, False]) == ["changing", "noise"]


def test_rows_of_unequal_length_are_our_bug():
    with pytest.raises(ValueError):
        canvas_cells([1], [1, 2], [True, True])


def test_a_new_canvas_forgets_the_one_before():
    read = reader().read
    read(step([1, 2], [1, 1]))
    assert [cell for cell, _ in read(step([1, 2], [1, 0], step=1)).cells] == ["settled", "noise"]
    assert [cell for cell, _ in read(step([1, 2], [1, 1], canvas=1)).cells] == ["changing"] * 2


def test_a_canvas_that_was_cut_is_compared_with_what_is_left_of_it():
    read = reader().read
    read(step([1, 2, 3], [1, 1, 1]))
    assert [cell for cell, _ in read(step([1, 3], [1, 1], step=1)).cells] == ["settled", "changing"]


def test_a_frame_counts_from_one_and_averages():
    got = reader().read(step([1, 2, 3, 4], [1, 0, 0, 0], canvas=2, step=1, entropy=0.5))
    assert (got.canvas, got.step, got.max_steps) == (3, 2, 4)
    assert (got.accepted, got.entropy) == (0.25, 0.5)


def test_speed_counts_committed_tokens_and_settled_ones_before_the_end_token():
    clock = Clock()
    read = reader(clock)
    clock.now = 10.0
    read.start()
    read.commit(block("..."))  # three tokens
    read.read(step([1, 2, END, 3], [1, 0, 1, 1], canvas=1))
    clock.now = 12.0
    got = read.read(step([1, 2, END, 3], [1, 0, 1, 1], canvas=1, step=1))
    assert got.tokens_per_second == (3 + 1) / 2


def test_each_token_is_decoded_once():
    calls = []
    read = CanvasReader(lambda ids: calls.append(ids) or "x", {END}, Clock()).read
    for index in range(3):
        read(step([1, 2, 1], [1, 1, 1], step=index))
    assert calls == [[1], [2]]


def test_control_characters_cannot_reach_the_terminal():
    (cell,) = reader().read(step([7], [1])).cells
    assert cell == ("changing", "\N{REPLACEMENT CHARACTER}[31m")


def test_the_three_classes_look_different_without_colour():
    text = styled(frame(("settled", " a"), ("changing", " b\n"), ("noise", " c")))
    assert text.plain == " a b↵ ·"
    styles = [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]
    assert styles == [("b↵", "yellow underline"), ("·", "dim")]


def test_a_log_line_stays_one_line_and_marks_the_classes():
    cells = (
        ("settled", "Hi\n"),
        ("changing", " you"),
        ("noise", " 漢字"),
        ("noise", ""),
        ("changing", ""),
    )
    assert plain(frame(*cells)) == "Hi↵ [you] ·····"


@pytest.mark.parametrize(
    ("token", "dots"),
    [("frog", "····"), (" frog", " ····"), ("\n", "·"), ("", "·"), (" ", " ·"), (" 漢", " ··")],
)
def test_noise_is_as_wide_as_its_token(token, dots):
    assert plain(frame(("noise", token))) == dots


def test_progress_breaks_between_its_parts():
    whole = "canvas 1  step 3/24  accepted 50%  entropy 0.250  82 tokens/s"
    assert progress(frame(), 80) == whole
    assert progress(frame(), 40).split("\n") == [
        "canvas 1  step 3/24  accepted 50%",
        "entropy 0.250  82 tokens/s",
    ]
    assert "  ".join(progress(frame(), 1).split("\n")) == whole
