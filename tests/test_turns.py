"""Requests at the same time: each gets the text it gets alone, in its turn, and leaves nothing."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import generation
from mlx_diffusiongemma.events import DenoisingStep, Finished
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.turns import FairLock

STORY = "Tell me a story about a fox."


def quick(seed):
    return GenerationOptions(seed=seed, max_tokens=40, max_denoising_steps=4)


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


@pytest.fixture(scope="module")
def alone(runtime):
    return [runtime.generate(STORY, quick(seed)).token_ids for seed in range(4)]


def run(*works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


# The lock ---------------------------------------------------------------------------------------


def wait_until(true):
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_lock_goes_round_in_the_order_of_asking():
    lock, order = FairLock(), []

    def work(name):
        for _ in range(3):
            with lock.held():
                order.append(name)
                wait_until(lambda: len(lock._queue) > 1 or order.count(name) == 3)

    def begin():
        threads = []
        with lock.held():
            for name in "abc":
                threads.append(threading.Thread(target=work, args=name))
                threads[-1].start()
                wait_until(lambda: len(lock._queue) == len(threads) + 1)
        return threads

    for thread in begin():
        thread.join(10)
    assert "".join(order) == "abcabcabc"
    assert not lock._queue


def test_a_waiter_that_is_interrupted_leaves_the_queue(monkeypatch):
    lock = FairLock()

    def interrupted(event):
        if not event.is_set():
            raise KeyboardInterrupt

    with lock.held(), monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), lock.held():
            pytest.fail("two hold the lock")
        assert len(lock._queue) == 1
    with lock.held():
        pass


def test_what_fails_in_its_turn_gives_it_back():
    lock = FairLock()
    with pytest.raises(ValueError), lock.held():
        raise ValueError
    with lock.held():
        pass


# Threads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["diffusion", "ar"])
def test_a_long_prompt_does_not_keep_a_short_one_waiting(runtime, monkeypatch, mode):
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 4)
    order, short_is_there = [], threading.Event()
    read = PrefixCache.read

    def slow_read(self, tokens):
        order.append(threading.current_thread().name)
        if len(order) == 1:
            assert short_is_there.wait(10)
        read(self, tokens)

    def ask(prompt):
        options = GenerationOptions(max_tokens=1, mode=mode)
        runtime.generate(prompt, options)
        order.append(f"{threading.current_thread().name} is done")

    def short():
        short_is_there.set()
        ask("Hi")

    monkeypatch.setattr(PrefixCache, "read", slow_read)
    threads = [
        threading.Thread(name="long", target=ask, args=["word " * 100]),
        threading.Thread(name="short", target=short),
    ]
    threads[0].start()
    wait_until(lambda: order)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert order.index("short is done") < len(order) - 10
    assert order[-1] == "long is done"


def test_threads_at_the_same_time_get_what_they_get_alone(runtime, alone):
    texts = {}

    def ask(seed):
        texts[seed] = runtime.generate(STORY, quick(seed)).token_ids

    run(*(lambda seed=seed: ask(seed) for seed in range(4)))
    assert [texts[seed] for seed in range(4)] == alone


def test_threads_advance_step_by_step(runtime):
    order, start = [], threading.Barrier(2)

    def ask(seed):
        events = runtime.stream(STORY, quick(seed))
        next(events)
        start.wait()
        for event in events:
            if isinstance(event, DenoisingStep):
                order.append(seed)
            if isinstance(event, Finished):
                assert event.result.stats.waiting_seconds > 0

    run(lambda: ask(0), lambda: ask(1))
    first = [order[:6].count(seed) for seed in (0, 1)]
    assert min(first) >= 2, f"one went ahead of the other: {order}"


def test_sessions_in_threads_keep_apart(runtime):
    def talk(seed, answers):
        session = runtime.session()
        for text in "Who are you?", "2 + 3 =", STORY:
            answers.append(session.generate(text, quick(seed)).token_ids)

    alone, together = {1: [], 2: []}, {1: [], 2: []}
    for seed in alone:
        talk(seed, alone[seed])
    run(*(lambda seed=seed: talk(seed, together[seed]) for seed in together))
    assert together == alone


def test_a_generation_that_nobody_goes_on_with_blocks_nobody(runtime, alone):
    left = runtime.stream(STORY, quick(9))
    next(left)
    assert runtime.generate(STORY, quick(0)).token_ids == alone[0]
    run(lambda: next(left))


def test_a_cache_is_loaded_and_used_in_different_threads(runtime, tmp_path):
    session, answers = runtime.session(), []
    run(lambda: session.generate(STORY, quick(1)))
    run(lambda: session.save_cache(tmp_path / "cache"))
    other = runtime.session()
    run(lambda: other.load_cache(tmp_path / "cache"))
    run(lambda: answers.append(other.generate(STORY, quick(1)).token_ids))
    assert answers == [runtime.generate(STORY, quick(1)).token_ids]


# asyncio ----------------------------------------------------------------------------------------


async def collect(events):
    return [event async for event in events]


def test_astream_gives_the_events_of_stream(runtime):
    plain = list(runtime.stream(STORY, quick(1)))
    events = asyncio.run(collect(runtime.astream(STORY, quick(1))))
    assert [type(event) for event in events] == [type(event) for event in plain]
    assert events[-1].result.token_ids == plain[-1].result.token_ids


def test_tasks_take_turns_and_the_loop_goes_on_meanwhile(runtime, alone):
    order, beats = [], []

    async def ask(seed):
        async for event in runtime.astream(STORY, quick(seed)):
            if isinstance(event, DenoisingStep):
                order.append(seed)
        return event.result.token_ids

    async def beat():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.001)

    async def main():
        heart = asyncio.create_task(beat())
        results = await asyncio.gather(*(ask(seed) for seed in range(3)))
        heart.cancel()
        return results

    assert asyncio.run(main()) == alone[:3]
    assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
    assert len(beats) > len(order)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of the process in /proc")
def test_asynchronous_requests_leave_no_thread_behind(runtime):
    """MLX keeps a stream, on Linux with a thread, for each thread that ever computed."""

    def count():
        return len(list(Path("/proc/self/task").iterdir()))

    brief = GenerationOptions(seed=1, max_tokens=4, max_denoising_steps=1)
    asyncio.run(collect(runtime.astream(STORY, brief)))
    before = count()
    for _ in range(12):
        asyncio.run(collect(runtime.astream(STORY, brief)))
    assert count() <= before + 2  # a library's own pool may still grow


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_cancelled_task_lets_its_session_go(runtime, alone, how):
    session = runtime.session()

    async def ask():
        async for event in session.astream(STORY, quick(2)):
            if isinstance(event, DenoisingStep) and how == "cancel":
                await asyncio.sleep(60)

    async def main():
        if how == "cancel":
            task = asyncio.create_task(ask())
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            events = session.astream(STORY, quick(2))
            await anext(events)
            await events.aclose()
        assert session.messages == ()
        return await collect(session.astream(STORY, quick(0)))

    assert asyncio.run(main())[-1].result.token_ids == alone[0]
    assert len(session.messages) == 2


def test_what_stream_raises_astream_raises(runtime):
    with pytest.raises(dg.PromptError):
        asyncio.run(collect(runtime.astream([{"role": "nobody", "content": "x"}])))
