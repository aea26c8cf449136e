"""A long process stays as fast and as small as a fresh one: 60 generations, watched, cancelled."""

import resource
import statistics
import sys
import time

import pytest

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import DenoisingStep, GenerationOptions

REQUESTS = 60
SEEDS = 5  # used in turn, so that the first ten and the last ten do the same work


def resident_bytes():
    """Memory of this process now, not its high-water mark, where the system tells it."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)


def answer(runtime, prompt, index, *, watch):
    for event in runtime.stream(prompt, GenerationOptions(seed=index, max_denoising_steps=8)):
        if watch and isinstance(event, DenoisingStep):
            runtime.tokenizer.decode(event.argmax_canvas[0].tolist())
    return event.result.text


def cancelled(runtime, index):
    stream = runtime.stream("Tell me a story about a fox.", GenerationOptions(seed=index))
    for _ in range(3):
        next(stream)
    stream.close()


@pytest.mark.parametrize("mode", ["plain", "watched", "after cancellations"])
def test_latency_and_memory_stay_flat(mode):
    runtime = dg.load("demo")
    seconds, memory, texts = [], [], []
    for index in range(REQUESTS):
        if mode == "after cancellations":
            cancelled(runtime, index)
        started = time.process_time()  # a busy machine is not our slowdown
        texts.append(answer(runtime, "2 + 2 =", index % SEEDS, watch=mode == "watched"))
        seconds.append(time.process_time() - started)
        memory.append(resident_bytes())
    first, last = statistics.median(seconds[:10]), statistics.median(seconds[-10:])
    grown = memory[-1] - memory[REQUESTS // 3]
    print(f"\n{mode}: median of first 10 {first * 1e3:.0f} ms, of last 10 {last * 1e3:.0f} ms")
    print(f"{mode}: resident {memory[-1] / 1e6:.0f} MB, {grown / 1e6:+.1f} MB since a third")
    assert last <= 1.2 * first
    assert grown < 8e6
    assert texts[:SEEDS] == texts[-SEEDS:], "the same seeds must give the same texts to the end"


def test_one_long_answer_does_not_poison_the_process():
    """Nineteen short answers, one of several canvases, ten short ones."""
    runtime = dg.load("demo")

    def timed(prompt, seed):
        started = time.process_time()
        runtime.generate(prompt, GenerationOptions(seed=seed))
        return time.process_time() - started

    before = [timed("2 + 2 =", 1) for _ in range(19)]
    memory = resident_bytes()
    timed("Tell me a story about a fox.", 1)
    after = [timed("2 + 2 =", 1) for _ in range(10)]
    assert statistics.median(after) <= 1.2 * statistics.median(before)
    assert resident_bytes() - memory < 8e6
