"""`bench compare`: fair turns, ratios within a prompt, workers that come, stay and fail."""

import json
import math
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from mlx_diffusiongemma.bench import compare, compare_report, tasks
from mlx_diffusiongemma.bench.compare import OURS, THEIRS, Answer, Way, Workers
from mlx_diffusiongemma.bench.exam import Exam
from mlx_diffusiongemma.bench.process import WorkerProcess
from mlx_diffusiongemma.errors import ConfigError, GenerationError

DEMO = Path(str(files("mlx_diffusiongemma").joinpath("demo")))
A, B, C = Way("a", "one", {"mode": "x"}), Way("b", "two", {}), Way("c", "two", {"sampler": "y"})
HELLO = {"name": "n", "version": "1", "mlx": "2", "device": "cpu", "dtype": "float32"}


def answer(**known):
    costs = {
        "token_ids": [5, 6],
        "prompt_seconds": 1.0,
        "seconds": 5.0,
        "cpu_seconds": 10.0,
        "passes": 8,
        "canvases": 2,
        "peak_bytes": 100,
    }
    return Answer(**costs | known)


class FakeWorker:
    """Answers at once; `log` is what all workers of a test were asked, and when they ended."""

    def __init__(self, name, log):
        self.name, self.log, self.hello = name, log, HELLO | {"name": name}

    def ask(self, request):
        self.log.append((self.name, request))
        return vars(answer(token_ids=[request["seed"]]))

    def close(self):
        self.log.append((self.name, "closed"))


def workers(log, *, together=True):
    names = ("one", "two")
    start = {name: lambda name=name: FakeWorker(name, log) for name in names}
    return Workers(start, together=together)


QUESTIONS = [{"prompt": f"q{index}", "max_tokens": 9} for index in range(4)]


def test_every_way_answers_a_prompt_before_the_next_one_and_who_begins_changes():
    order = [(way.name, index) for way, index in compare.schedule([A, B, C], 4, 1)]
    assert order[:6] == [("a", 0), ("b", 0), ("c", 0), ("b", 1), ("c", 1), ("a", 1)]
    assert sorted(order) == [(name, index) for name in "abc" for index in range(4)]


def test_answers_keep_the_order_of_the_prompts_whoever_came_first():
    log, done = [], []
    answers = compare.run_compare(workers(log), [A, B, C], QUESTIONS, seed=7, progress=done.append)
    assert {
        name: [one.token_ids for one in some] for name, some in answers.items()
    } == dict.fromkeys("abc", [[7], [8], [9], [10]])
    assert done == list(range(1, 13))
    name, request = log[0]
    assert (name, request) == ("one", {"prompt": "q0", "max_tokens": 9, "mode": "x", "seed": 7})
    assert log[0] == log[1], "the first answer of each way is not measured"
    assert len(log) == 3 + 12


def test_one_worker_at_a_time_where_memory_is_short():
    log = []
    alone = workers(log, together=False)
    answers = compare.run_compare(alone, [A, B, C], QUESTIONS, seed=0)
    alone.close()
    alive, most = set(), 0
    for name, what in log:
        alive = alive - {name} if what == "closed" else alive | {name}
        most = max(most, len(alive))
    assert most == 1 and not alive
    assert [one.token_ids for one in answers["c"]] == [[0], [1], [2], [3]]


def test_a_pass_costs_what_the_prompt_did_not():
    one = answer()
    assert (one.step_seconds, one.step_cpu_seconds, one.tokens_per_second) == (0.5, 1.0, 0.4)


def test_ratios_are_of_pairs_and_leave_out_answers_of_nothing():
    ours = [answer(seconds=2.0), answer(seconds=30.0), answer(seconds=4.0, token_ids=[])]
    theirs = [answer(seconds=4.0), answer(seconds=60.0), answer(seconds=8.0)]
    found = compare.ratios(ours, theirs)
    assert found["seconds"] == (0.5, 0.5, 0.5)
    assert found["tokens_per_second"] == (2.0, 2.0, 2.0)
    assert all(map(math.isnan, compare.spread([])))
    assert compare.spread([3.0]) == (3.0, 3.0, 3.0)


def test_the_row_of_a_way():
    some = [answer(), answer(seconds=15.0, peak_bytes=300, passes=4)]
    row = compare.summarise("a", some, [True, False])
    assert (row.right, row.count, row.peak_bytes) == (1, 2, 300)
    assert (row.tokens_per_second, row.steps_per_canvas, row.passes) == (0.2, 3.0, 6.0)
    written = compare.summarise("ar", [answer(canvases=0)], None)
    assert (written.right, written.low, written.steps_per_canvas) == (None, None, None)
    first, second = list(compare_report.table([row, written]))[2:]
    assert "| 1/2 |" in first and "| not checked |" in second


def test_what_is_said_beside_the_numbers():
    answers = {"a": [answer(), answer()], "b": [answer(), answer(token_ids=[5])]}
    alone = compare_report.notes({OURS: HELLO}, answers, "a machine", together=True)
    assert any("--peer PYTHON" in line for line in alone)
    assert "a machine" in alone[0] and "cpu" in alone[0] and "float32" in alone[0]
    other = HELLO | {"name": "mlx-vlm", "mlx": "3"}
    hellos = {OURS: HELLO, THEIRS: other}
    both = compare_report.notes(hellos, answers, "a machine", together=False)
    assert "b: 1 of 2 answers are those of a, token for token" in both
    assert any("different versions of MLX" in line for line in both)
    assert any("one side at a time" in line for line in both)
    assert "CPU" in next(compare_report.ratio_lines(answers, on_cpu=True))
    assert "CPU" not in next(compare_report.ratio_lines(answers, on_cpu=False))


def test_an_exam_asks_all_the_same_tokens_and_judges_their_text():
    examples = [tasks.Example("2 + 2 =", "2 + 2 = 4"), tasks.Example("1 + 1 =", "1 + 1 = 2")]
    exam = Exam(DEMO, examples, max_tokens=9)
    first = exam.questions[0]
    assert first["max_tokens"] == 9 and 106 in first["eos_token_ids"]
    tokenizer = exam._tokenizer
    assert first["prompt_ids"] == tokenizer.encode_prompt("2 + 2 =")
    told = [tokenizer._encode("2 + 2 = 4"), tokenizer._encode("1 + 1 = 3")]
    assert exam.judge(told) == [True, False]


SCRIPT = """
import json, sys
print(json.dumps({"name": "scripted"}), flush=True)
for line in sys.stdin:
    if "die" in line:
        sys.exit("the reason")
    print(line, end="", flush=True)
"""


def test_a_worker_answers_line_by_line_and_ends_with_its_reader():
    with WorkerProcess([sys.executable, "-c", SCRIPT]) as worker:
        assert worker.hello == {"name": "scripted"}
        assert [worker.ask({"n": n}) for n in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        process = worker._process
    assert process.returncode == 0


def test_a_worker_that_dies_says_why():
    with WorkerProcess([sys.executable, "-c", SCRIPT]) as worker:
        with pytest.raises(GenerationError, match="ended early: the reason"):
            worker.ask({"die": 1})
        with pytest.raises(GenerationError, match="ended early: the reason"):
            worker.ask({"n": 1})


def test_a_worker_that_cannot_start_is_named_with_a_hint():
    with pytest.raises(ConfigError, match="No such file") as caught:
        WorkerProcess(["/nowhere/python", "x"])
    assert caught.value.hint == "name a Python interpreter"
    with pytest.raises(ConfigError, match="ended early: no luck") as caught:
        WorkerProcess([sys.executable, "-c", "raise SystemExit('no luck')"], hint="try it")
    assert caught.value.hint == "try it"


def test_the_report_is_json():
    answers = {"a": [answer(), answer()], "b": [answer(), answer()]}
    rows = [compare.summarise(name, some, None) for name, some in answers.items()]
    report = json.loads(json.dumps(compare_report.report(rows, answers, {OURS: HELLO}, ["said"])))
    assert report["ratios"]["a / b"]["seconds"] == [1, 1, 1]
    assert len(report["answers"]["b"]) == 2 and report["notes"] == ["said"]
