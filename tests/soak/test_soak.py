"""A long process stays as fast and as small as a fresh one: 60 generations here, 500 when slow.

The last ten generations of the long process and the first ten of a fresh one take turns, so that
a machine that changes its speed meanwhile changes both, and the two must write the same texts.
"""

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_diffusiongemma.bench.process import WorkerProcess

WORKER = Path(__file__).with_name("worker.py")
REQUESTS, COMPARED = 60, 10
SEEDS = 5  # used in turn
SHORT = "2 + 2 ="
MODES = {"plain": {}, "watched": {"watch": True}, "after cancellations": {"cancel_first": True}}


def start():
    """A process that generates; see worker.py."""
    return WorkerProcess([sys.executable, str(WORKER)])


def ask_for(worker, prompt, index, *, steps=8, watch=False, cancel_first=False):
    request = {
        "prompt": prompt,
        "seed": index % SEEDS,
        "steps": steps,
        "watch": watch,
        "cancel_first": cancel_first,
    }
    return worker.ask(request)


def last_and_fresh(old, ask):
    """Ten more answers of `old` and the first ten of a new process, in turns."""
    last, fresh = [], []
    with start() as new:
        for index in range(REQUESTS - COMPARED, REQUESTS):
            last.append(ask(old, index))
            fresh.append(ask(new, index))
    return last, fresh


def check_speed(label, last, fresh):
    """The bar: the median of the last ten is at most 1.2 times that of the first ten."""
    late, early = (statistics.median(answer["seconds"] for answer in run) for run in (last, fresh))
    print(
        f"\n{label}: median of the last 10 {late * 1e3:.0f} ms, of a fresh 10 {early * 1e3:.0f} ms"
    )
    assert late <= 1.2 * early
    assert [answer["text"] for answer in last] == [answer["text"] for answer in fresh]


@pytest.mark.parametrize("mode", MODES)
def test_latency_and_memory_stay_flat(mode):
    def ask(worker, index):
        return ask_for(worker, SHORT, index, **MODES[mode])

    with start() as old:
        before = [ask(old, index) for index in range(REQUESTS - COMPARED)]
        last, fresh = last_and_fresh(old, ask)
    check_speed(mode, last, fresh)
    grown = last[-1]["resident"] - before[REQUESTS // 3]["resident"]
    print(
        f"{mode}: resident {last[-1]['resident'] / 1e6:.0f} MB, {grown / 1e6:+.1f} MB since a third"
    )
    assert grown < 8e6
    texts = [answer["text"] for answer in before + last]
    assert texts[:SEEDS] == texts[-SEEDS:], "the same seeds must give the same texts to the end"


def test_one_long_answer_does_not_poison_the_process():
    """Nineteen short answers, one of several canvases, ten short ones."""
    with start() as old:
        before = [ask_for(old, SHORT, index) for index in range(19)]
        ask_for(old, "Tell me a story about a fox.", 1, steps=24)
        last, fresh = last_and_fresh(old, lambda worker, index: ask_for(worker, SHORT, index))
    check_speed("after a long answer", last, fresh)
    assert last[-1]["resident"] - before[-1]["resident"] < 8e6


@pytest.mark.slow
def test_five_hundred_mixed_requests_leave_a_process_as_it_was():
    command = [sys.executable, "-m", "mlx_diffusiongemma", "bench", "soak", "--requests", "500"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "verdict: holds"
