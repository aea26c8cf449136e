"""The sweep: tasks like the demo's training, fair turns, honest numbers, a drawing."""

import importlib
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_diffusiongemma.bench import plot, stories, sweep, tasks
from mlx_diffusiongemma.bench.sweep import Point, Setting
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.events import GenerationResult, GenerationStats
from mlx_diffusiongemma.options import GenerationOptions

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [tasks.Example("2 + 2 =", "2 + 2 = 4"), tasks.Example("1 + 1 =", "1 + 1 = 2")]


@pytest.fixture
def training(monkeypatch):
    """The modules of examples/train_demo, which the package does not ship."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "train_demo")
    return {name: importlib.import_module(name) for name in ("sudoku", "talk", "stories")}


def test_the_tasks_are_those_of_the_demos_training(training):
    assert tasks.all_grids() == training["sudoku"].GRIDS
    assert tasks.HELD_OUT_GRIDS == training["sudoku"].HELD_OUT_GRIDS
    puzzle, grid = training["sudoku"].make_puzzle(random.Random(5), tasks.HELD_OUT_GRIDS)
    example = tasks.sudoku(random.Random(5))
    assert example.answer == training["sudoku"].as_rows(grid)
    assert example.prompt.endswith(training["sudoku"].as_rows(puzzle))
    assert example.prompt.splitlines()[0] in training["sudoku"].HEADINGS
    for seed in range(30):
        request_, answer = training["talk"].addition(random.Random(seed))
        assert tasks.add(random.Random(seed)) == tasks.Example(request_, answer)


def test_stories_are_asked_for_and_judged_as_in_the_demos_training(training):
    judge = training["stories"].is_right
    rng = random.Random(3)
    for _ in range(200):
        asked, story = training["stories"].make_story(rng)
        assert judge(asked, story) and stories.is_right(asked, story)
        words = story.split()
        words[rng.randrange(len(words))] = rng.choice(words)
        changed = " ".join(words)
        assert stories.is_right(asked, changed) == judge(asked, changed), (asked, changed)
        other = stories.request(rng)
        assert stories.is_right(other, story) == judge(other, story)
        assert training["stories"]._ASKED.search(other)
    example = tasks.draw("story", 1, seed=0)[0]
    assert not example.is_right("Once upon a time.")


def test_every_puzzle_has_one_solution():
    for example in tasks.draw("sudoku", 20, seed=1):
        puzzle = "".join(example.prompt.splitlines()[1:])
        assert tasks.solutions(puzzle) == [example.answer.replace("\n", "")]


def test_a_seed_repeats_the_examples():
    assert tasks.draw("add", 5, seed=1) == tasks.draw("add", 5, seed=1)
    assert tasks.draw("add", 5, seed=1) != tasks.draw("add", 5, seed=2)


def test_an_answer_is_right_but_for_space_around_it():
    example = EXAMPLES[0]
    assert example.is_right(" 2 + 2 = 4\n")
    assert not example.is_right("2 + 2 = 5")


def test_the_points_are_the_steps_the_presets_and_left_to_right():
    names = [point.name for point in sweep.settings([1, 2], max_tokens=64, presets=True)]
    assert names == ["1 step", "2 steps", "quality", "balanced", "fast", "left to right"]
    alone = sweep.settings([4], max_tokens=9, presets=False, autoregressive=False)
    assert [point.options.max_denoising_steps for point in alone] == [4]
    fast = {"autoregressive": False, "fast_self_conditioning": True}
    *_, both = sweep.settings([4, 8, 2], max_tokens=9, presets=False, **fast)
    assert (both.name, both.options.max_denoising_steps) == ("8 steps, --fast-sc", 8)
    assert both.options.fast_self_conditioning


class FakeRuntime:
    """Answers with a fixed text; remembers what it was asked."""

    def __init__(self, text="2 + 2 = 4"):
        self.calls = []
        self.text = text

    def generate(self, prompt, options):
        self.calls.append((prompt, options.max_denoising_steps, options.seed))
        stats = GenerationStats(
            prompt_tokens=5,
            generated_tokens=6,
            denoising_steps=() if options.mode == "ar" else (2, 3),
            converged=(),
            seed=options.seed,
            load_seconds=0.0,
            prefill_seconds=0.5,
            denoising_seconds=1.0,
            commit_seconds=0.5,
            peak_memory_bytes=1,
            mode=options.mode,
        )
        return GenerationResult(
            text=self.text,
            thought="",
            tool_calls=(),
            token_ids=(),
            finish_reason="stop",
            stats=stats,
        )


def test_settings_take_turns_on_every_example_with_the_same_seeds():
    runtime, done = FakeRuntime(), []
    points = sweep.settings([1, 2], max_tokens=64, presets=False, autoregressive=False)
    sweep.run_sweep(runtime, points, EXAMPLES, seed=7, progress=done.append)
    warm, measured = runtime.calls[:2], runtime.calls[2:]
    assert [steps for _, steps, _ in warm] == [1, 2]
    assert measured == [
        ("2 + 2 =", 1, 7),
        ("2 + 2 =", 2, 7),
        ("1 + 1 =", 1, 8),
        ("1 + 1 =", 2, 8),
    ]
    assert done == [1, 2]


def test_the_numbers_of_a_point():
    points = sweep.settings([4], max_tokens=64, presets=False)
    diffused, written = sweep.run_sweep(FakeRuntime(), points, EXAMPLES, seed=0)
    assert (diffused.right, diffused.count, diffused.share) == (1, 2, 0.5)
    assert (diffused.passes, written.passes) == (5, 6)
    assert (diffused.seconds, diffused.tokens_per_second) == (2.0, 3.0)
    assert diffused.low < 0.1 < 0.9 < diffused.high


def test_the_interval_is_wilsons():
    low, high = sweep.wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert sweep.wilson(10, 10)[1] == 1.0


def point(name, kind, share=0.5, seconds=1.0):
    return Point(
        name=name,
        kind=kind,
        right=round(10 * share),
        count=10,
        low=share - 0.1,
        high=share + 0.1,
        seconds=seconds,
        seconds_low=seconds,
        seconds_high=seconds,
        passes=4,
        tokens_per_second=9,
    )


POINTS = [point("1 step", "steps"), point("2 steps", "steps", 0.8), point("fast", "preset")]


def test_the_report_and_the_table_hold_every_point():
    report = json.loads(json.dumps(sweep.report(POINTS, {"task": "add"})))
    assert [entry["name"] for entry in report["points"]] == ["1 step", "2 steps", "fast"]
    assert report["points"][1]["share"] == 0.8
    assert report["task"] == "add" and report["versions"]["mlx"]
    assert len(list(sweep.table(POINTS))) == 2 + len(POINTS)


def test_a_drawing_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(POINTS, tmp_path / "points.png", "a title")
    assert (tmp_path / "points.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib") as caught:
        plot.require_matplotlib()
    assert "mlx-diffusiongemma[plot]" in caught.value.hint


def test_a_setting_is_measured_with_its_own_options(monkeypatch):
    seen = []
    runtime = SimpleNamespace(
        generate=lambda prompt, options: (
            seen.append(options),
            FakeRuntime().generate(prompt, options),
        )[1]
    )
    asked = GenerationOptions(preset="fast", max_tokens=9)
    sweep.run_sweep(runtime, [Setting("fast", "preset", asked)], EXAMPLES[:1], seed=3)
    assert seen[-1] == GenerationOptions(preset="fast", max_tokens=9, seed=3)
