"""Wall time and passes of a batch beside the same prompts one by one, in turns in one process.

    python benchmarks/batch.py [--model demo] [--rounds 5] [--rows 8]

Both sides answer eight prompts of different lengths with the same seeds; the texts must be equal.
Who begins changes with every round. A pass is one run through the network's layers: of a prompt, of
a denoising step, or of a block that is read before the next canvas.
"""

import argparse
import json
import statistics
import time

from mlx_diffusiongemma import GenerationOptions, GenerationResult, Runtime, load
from mlx_diffusiongemma.batch import BatchRequest

ANIMALS = ("frog", "dog", "fox", "bear", "owl", "cat", "mouse", "bird")
LENGTHS = (40, 64, 90, 64, 128, 100, 64, 128)  # tokens: one and two canvases of the demo model


def requests() -> list[BatchRequest]:
    """The prompts, each with a seed and a length of its own."""
    return [
        BatchRequest(
            f"Tell me a story about a {animal}.", GenerationOptions(seed=seed, max_tokens=length)
        )
        for seed, (animal, length) in enumerate(zip(ANIMALS, LENGTHS, strict=True))
    ]


def one_by_one(runtime: Runtime) -> tuple[list[GenerationResult], int]:
    """The answers, and how many passes they took."""
    results = [runtime.generate(asked.prompt, asked.options) for asked in requests()]
    stats = [result.stats for result in results]
    return results, sum(sum(s.denoising_steps) + s.canvases for s in stats)


def together(runtime: Runtime, rows: int) -> tuple[list[GenerationResult], int]:
    """The same as a batch."""
    answers = sorted(runtime.stream_batch(requests(), rows=rows), key=lambda answer: answer.index)
    return [answer.outcome for answer in answers], max(answer.passes for answer in answers)


def main() -> None:
    """Measure, check that the texts are equal, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8)
    asked = parser.parse_args()
    runtime = load(asked.model)
    sides = {"single": one_by_one, "batch": lambda runtime: together(runtime, asked.rows)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    passes: dict[str, int] = {}
    for turn in range(asked.rounds + 1):
        texts = {}
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            started = time.perf_counter()
            results, passes[name] = sides[name](runtime)
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
            texts[name] = [result.text for result in results]
        assert texts["single"] == texts["batch"], "a batch must not change any text"
    ratios = [b / s for b, s in zip(seconds["batch"], seconds["single"], strict=True)]
    print(f"passes   {passes['single']} one by one, {passes['batch']} together")
    print(f"ratio    {passes['batch'] / passes['single']:.3f}")
    for name, each in seconds.items():
        print(f"{name:8} {statistics.median(each):.2f} s, {min(each):.2f} to {max(each):.2f}")
    print(f"ratio    {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(json.dumps({"passes": passes, "seconds": seconds, "ratios": ratios}))


if __name__ == "__main__":
    main()
