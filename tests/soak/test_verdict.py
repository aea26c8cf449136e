"""The soak's verdict can fail: a planted leak, slowdown and change of mind each show."""

import itertools
import mmap
import time

import mlx.core as mx
import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma.bench import soak
from mlx_diffusiongemma.bench.soak import Bar, Reply, Soak
from mlx_diffusiongemma.bench.soak_mix import MIX
from mlx_diffusiongemma.bench.soak_worker import SoakWorker, resident_bytes

REQUESTS = 150
LEAK = 100_000  # bytes a request: 10 MB in 100
WORK = 20_000  # turns of a loop, about half a millisecond


class FakeProcess:
    """Works, measures itself as the worker does, and ages as it is told to."""

    def __init__(self, *, leak=0, leak_in_mlx=0, slower=0.0, changes_at=None):
        self.leak, self.leak_in_mlx, self.slower = leak, leak_in_mlx, slower
        self.changes_at = changes_at
        self.kept, self.count = [], 0

    def ask(self, request):
        started, busy = time.perf_counter(), time.process_time()
        for _ in range(int(WORK * (1 + self.slower * self.count))):
            pass
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        if self.leak:  # not from memory that this process has given back to itself before
            self.kept.append(mmap.mmap(-1, self.leak))
            self.kept[-1].write(b"x" * self.leak)
        array = mx.ones((self.leak_in_mlx,), mx.uint8)
        mx.eval(array)
        self.kept.append(array)
        outcome = f"{request['shape']}{'!' if self.count == self.changes_at else ''}"
        self.count += 1
        return {
            "seconds": seconds,
            "cpu_seconds": busy,
            "resident_bytes": resident_bytes(),
            "active_bytes": mx.get_active_memory(),
            "outcome": outcome,
        }


def missed(*, fresh=True, **faults):
    """The names of the bars that a process with these faults misses."""
    result = soak.run_soak(FakeProcess(**faults), FakeProcess if fresh else None, REQUESTS)
    found = soak.bars(result, on_cpu=True)
    names = [bar.name for bar in found if bar.decides and not bar.met]
    assert soak.holds(found) == (not names)
    assert list(soak.lines(found))[-1] == f"verdict: {'FAILS' if names else 'holds'}"
    return names


def test_a_sound_process_holds():
    assert missed() == []


def test_a_planted_leak_fails():
    assert missed(leak=LEAK) == ["resident MB for 100 requests"]


def test_a_planted_leak_of_arrays_fails():
    assert "MLX's MB for 100 requests" in missed(leak_in_mlx=LEAK)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_planted_slowdown_fails(fresh):
    (name,) = missed(slower=0.01, fresh=fresh)
    assert name.endswith("CPU time") and ("fresh" in name) == fresh


@pytest.mark.parametrize("request_", [len(MIX), 101, REQUESTS - 1])
def test_a_planted_change_of_an_answer_fails(request_):
    assert missed(changes_at=request_) == ["answers unlike the first of their kind"]


def reply(seconds=1.0, resident=0, outcome="a", cpu=1.0):
    return Reply(
        seconds=seconds,
        cpu_seconds=cpu,
        resident_bytes=resident,
        active_bytes=0,
        outcome=outcome,
    )


def test_the_numbers_of_the_bars():
    replies = [reply(resident=index * 20_000) for index in range(300)]
    replies[-50:] = [
        reply(seconds=3.0, cpu=2.0, resident=index * 20_000) for index in range(250, 300)
    ]
    fresh = [reply(seconds=2.0, cpu=1.6)] * 50
    found = {bar.name: bar for bar in soak.bars(Soak(replies=replies, fresh=fresh), on_cpu=False)}
    assert found["last 50 by first 50, median time"] == Bar(
        "last 50 by first 50, median time", 3.0, 1.1, decides=False
    )
    assert found["last 50 by a fresh process in turns, time"].value == 1.5
    assert found["last 50 by a fresh process in turns, time"].decides
    assert found["last 50 by a fresh process in turns, CPU time"].value == pytest.approx(1.25)
    assert not found["last 50 by a fresh process in turns, CPU time"].decides
    assert found["resident MB for 100 requests"].value == pytest.approx(2.0)


@pytest.mark.parametrize("early", [True, False])
def test_growth_counts_once_caches_have_their_size(early):
    sizes = [1e6 * (min(index, 30) if early else max(index - 30, 0)) for index in range(150)]
    replies = [reply(resident=size) for size in sizes]
    found = soak.bars(Soak(replies=replies, fresh=[]), on_cpu=True)
    (bar,) = (bar for bar in found if bar.name == "resident MB for 100 requests")
    assert bar.met == early


def test_a_fresh_process_must_give_the_same_answers():
    replies = [reply(outcome=str(index % len(MIX))) for index in range(150)]
    fresh = replies[-50:]
    assert soak.unlike(Soak(replies=replies, fresh=fresh)) == []
    fresh = [*fresh[:7], reply(outcome="other"), *fresh[8:]]
    assert soak.unlike(Soak(replies=replies, fresh=fresh)) == [107]


def test_the_old_and_the_fresh_process_take_turns():
    order = []

    class Noted(FakeProcess):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def ask(self, request):
            order.append((self.name, request["shape"]))
            return super().ask(request)

    soak.run_soak(Noted("old"), lambda: Noted("new"), REQUESTS)
    assert order[100:125] == [("new", shape) for shape in range(25)], "warm before it counts"
    turns = [(who, index % 25) for index in range(50) for who in ("old", "new")]
    assert order[125:] == turns


def test_the_mix_holds_every_kind_of_request():
    kinds = {shape.kind for shape in MIX}
    assert kinds == {"answer", "cancel", "failing", "session", "kept", "bounded", "astream"}
    assert {shape.watch for shape in MIX} == {True, False}
    assert sum(shape.options.get("mode") == "ar" for shape in MIX) == 3


@pytest.fixture(scope="module")
def worker():
    return SoakWorker(dg.load("demo"))


def shapes(*kinds):
    some = [number for number, shape in enumerate(MIX) if shape.kind in kinds]
    return pytest.mark.parametrize("number", some, ids=lambda number: MIX[number].name)


@shapes("cancel", "failing", "bounded", "astream")
def test_a_shape_gives_the_same_outcome_twice(worker, number):
    one, two = (worker.reply(number) for _ in range(2))
    assert one["outcome"] == two["outcome"]
    assert min(one["seconds"], one["cpu_seconds"], one["resident_bytes"], one["active_bytes"]) > 0


def test_a_kept_session_begins_anew_every_round(worker):
    kept = [number for number, shape in enumerate(MIX) if shape.kind == "kept"]
    first, second = ([worker.reply(number)["outcome"] for number in kept] for _ in range(2))
    assert first == second and len(set(first)) == 2


def test_stories_have_one_to_four_canvases():
    runtime = dg.load("demo")
    counts = set()
    for number, shape in enumerate(MIX):
        if shape.name in ("sum", "two canvases", "story", "four canvases"):
            options = dg.GenerationOptions(**dict(shape.options) | {"seed": number})
            counts.add(runtime.generate(shape.prompts[0], options).stats.canvases)
    assert counts == {1, 2, 3, 4}


def test_outcomes_differ_where_anything_that_is_seen_differs(worker):
    cancelled = [n for n, s in enumerate(MIX) if s.kind in ("cancel", "failing", "bounded")]
    outcomes = [worker.reply(number)["outcome"] for number in cancelled]
    assert all(one != other for one, other in itertools.combinations(outcomes, 2))
