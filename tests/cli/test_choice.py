"""generate --choices: the most probable text on standard output, what speaks for each elsewhere."""

import json

import pytest

QUESTION = "What colour is grass?"
CHOICES = ("--choices", "Grass is red.", "--choices", "Grass is green.")


@pytest.fixture
def run_demo(run_here):
    return lambda *args: run_here("generate", "--model", "demo", *CHOICES, *args, fake=False)


def test_the_most_probable_choice_is_all_of_standard_output(run_demo, tmp_path):
    path = tmp_path / "report.json"
    run = run_demo("--stats", "--report", str(path), QUESTION)
    assert (run.code, run.out) == (0, "Grass is green.\n")
    best, other, *_ = run.err.splitlines()
    assert best.endswith("  Grass is green.") and other.endswith("  Grass is red.")
    assert 0.99 < float(best.split()[0]) <= 1 and float(other.split()[0]) < 0.01
    report = json.loads(path.read_text())
    assert list(report["probabilities"]) == ["Grass is red.", "Grass is green."]
    assert report["model"] == "demo" and report["passes"] == 1 and report["seed"] == 0


def test_json_has_every_probability(run_demo):
    said = json.loads(run_demo("--json", "--seed", "5", QUESTION).out)
    assert said["text"] == "Grass is green."
    assert sum(said["probabilities"].values()) == pytest.approx(1)
    assert said["stats"]["seed"] == 5


def test_a_file_of_prompts_is_chosen_for_line_by_line(run_demo, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    rows = [{"prompt": QUESTION}, {"prompt": QUESTION, "max_tokens": 3}, {"prompt": "Hello"}]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    run = run_demo("--batch-file", str(prompts), "--out", str(out))
    first, second, third = map(json.loads, out.read_text().splitlines())
    assert run.code == 1 and "line 2" in run.err
    assert first["text"] == "Grass is green."
    assert first["probabilities"] == json.loads(run_demo("--json", QUESTION).out)["probabilities"]
    assert second["error"] == "max_tokens is given with --choices"
    assert sum(third["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--steps", "4"], "--steps is given with --choices"),
        (["--watch"], "--watch is given with --choices"),
        (["--stop", "a"], "--stop is given with --choices"),
        (["--choices", "Grass is red."], "--choices: the choice 'Grass is red.' is given twice"),
        (["--choices", ""], "--choices: choices are"),
        (["--choices", "<turn|>"], "--choices: the choice '<turn|>' holds a special token"),
        (["--choices", "a" * 99], "a canvas of this model has room for 31 and an end token"),
    ],
)
def test_what_cannot_be_chosen_is_an_error_of_one_line_and_a_hint(run_demo, args, message):
    run = run_demo(*args, QUESTION)
    assert (run.code, run.out) == (1, "")
    assert message in run.err
    assert len(run.err.splitlines()) <= 3
