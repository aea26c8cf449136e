"""What each recipe costs, on the demo model: bits, logits, right answers and denoising steps.

    python benchmarks/recipes.py                    the table of docs/convert.md, in a few minutes
    python benchmarks/recipes.py --examples 64      the same, with less noise

The demo model (or `--model FOLDER`, with the same tasks) is converted by every recipe. Logits are
held against the unconverted model's on the same half-noisy canvases, in both kinds of step: with
and without self-conditioning. Then every model answers the same examples with the same seeds.
Lower precision costs steps as well as answers: noisier logits settle later.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma import hub, runtime
from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES, uniform_recipe, with_changes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "train_demo"))

from tasks import TASKS, Example  # noqa: E402

TEMPERATURE = 0.6  # of the logits that the second step is conditioned on
UNCONVERTED = "(unconverted)"
# Beside the named recipes: what searching gives, and what too few bits cost where all tokens pass.
OTHERS = ("mixed-2-8+search", "4bits", "3bits", "2bits", "2bits+search")


@dataclass(frozen=True)
class Probe:
    """A prompt with a half-noisy canvas, and the unconverted model's logits for it.

    prompt [1, S], canvas [1, L]; first, conditioned [L, V]: without and with self-conditioning.
    """

    prompt: mx.array
    canvas: mx.array
    first: mx.array
    conditioned: mx.array


@dataclass(frozen=True)
class Row:
    """One recipe. `divergence` is the mean KL divergence in nats, `agreement` of the top token."""

    recipe: str
    bits_per_weight: float
    divergence: float
    agreement: float
    right: dict[str, float]
    steps: float


def draw_examples(tasks: Sequence[str], count: int) -> dict[str, list[Example]]:
    """The same examples in every run."""
    return {
        task: [TASKS[task](random.Random(f"recipes {task} {index}")) for index in range(count)]
        for task in tasks
    }


def make_probes(model: runtime.Runtime, examples: Sequence[Example]) -> list[Probe]:
    """Canvases that the unconverted model wrote itself, half of each redrawn at random."""
    random_ids = np.random.default_rng(0)
    length, vocabulary = model.config.canvas_length, model.config.vocab_size
    probes = []
    for seed, example in enumerate(examples):
        answer = model.generate(example.messages, GenerationOptions(seed=seed, max_tokens=length))
        ids = np.full(length, min(model.generation_config.eos_token_ids))
        ids[: len(answer.token_ids)] = answer.token_ids
        noise = random_ids.random(length) < 0.5
        ids[noise] = random_ids.integers(0, vocabulary, int(noise.sum()))
        prompt = mx.array([model.tokenizer.encode_prompt(example.messages)])
        canvas = mx.array(ids.astype(np.int32))[None]
        first, conditioned = both_steps(model, prompt, canvas, None)
        probes.append(Probe(prompt, canvas, first, conditioned))
    return probes


def both_steps(
    model: runtime.Runtime, prompt: mx.array, canvas: mx.array, first: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Logits [L, V] of a step without and of one with self-conditioning on `first`, or its own."""
    network = model.model
    cache = network.make_cache()
    network.prefill(prompt, cache)
    own = network.denoise(canvas, cache, None)
    given = own if first is None else first[None]
    conditioned = network.denoise(canvas, cache, given / TEMPERATURE)
    mx.eval(own, conditioned)
    return own[0], conditioned[0]


def compare_logits(model: runtime.Runtime, probes: Sequence[Probe]) -> tuple[float, float]:
    """Mean KL divergence from the unconverted model in nats, and share of equal top tokens."""
    divergences, agreements = [], []
    for probe in probes:
        ours = both_steps(model, probe.prompt, probe.canvas, probe.first)
        for logits, expected in zip(ours, (probe.first, probe.conditioned), strict=True):
            log_p = expected - mx.logsumexp(expected, axis=-1, keepdims=True)
            log_q = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            divergences.append((mx.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean().item())
            agreements.append((logits.argmax(-1) == expected.argmax(-1)).mean().item())
    return float(np.mean(divergences)), float(np.mean(agreements))


def measure(
    recipe: str,
    folder: Path,
    bits: float,
    probes: Sequence[Probe],
    examples: dict[str, list[Example]],
) -> Row:
    """Everything about one converted model."""
    model = runtime.load(folder)
    divergence, agreement = compare_logits(model, probes)
    right, steps = {}, []
    for task, drawn in examples.items():
        answers = [
            model.generate(example.messages, GenerationOptions(seed=seed, max_tokens=96))
            for seed, example in enumerate(drawn)
        ]
        judged = [e.is_right(answer.text) for e, answer in zip(drawn, answers, strict=True)]
        right[task] = sum(judged) / len(judged)
        steps += [count for answer in answers for count in answer.stats.denoising_steps]
    return Row(recipe, bits, divergence, agreement, right, float(np.mean(steps)))


def rows(name: str, recipes: Sequence[str], examples: dict[str, list[Example]]) -> Iterator[Row]:
    """The unconverted model, then one row for each recipe.

    `NAME+search` searches for its scales; `2bits` is that width for everything but the router.
    """
    source = hub.resolve(name)
    some = [example for drawn in examples.values() for example in drawn[:8]]
    probes = make_probes(runtime.load(source), some)
    yield measure(UNCONVERTED, source, 16.0, probes, examples)
    for recipe in recipes:
        base, _, searched = recipe.partition("+")
        width = base.removesuffix("bits")
        chosen = (
            uniform_recipe(Quantization(int(width), 64)) if width.isdecimal() else RECIPES[base]
        )
        chosen = with_changes(chosen, search=bool(searched))
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "converted"
            report = convert_checkpoint(source, folder, chosen)
            yield measure(recipe, folder, report.bits_per_weight, probes, examples)


def main() -> None:
    """Print the table as markdown, a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=hub.DEMO)
    parser.add_argument("--examples", type=int, default=12, help="for each task")
    parser.add_argument("--tasks", default="sudoku,sort,add", help=f"among {', '.join(TASKS)}")
    parser.add_argument("--recipes", default=",".join([*RECIPES, *OTHERS]))
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    examples = draw_examples(tasks, options.examples)
    found = []
    print("| recipe | bits per weight | KL, nats | same top token |", end="")
    print("".join(f" {task} right |" for task in tasks), "steps per canvas |")
    print("|---|---:|---:|---:|" + "---:|" * len(tasks) + "---:|")
    for row in rows(options.model, options.recipes.split(","), examples):
        found.append(asdict(row))
        scores = "".join(f" {row.right[task]:.0%} |" for task in tasks)
        print(
            f"| {row.recipe} | {row.bits_per_weight:.2f} | {row.divergence:.2g} | "
            f"{row.agreement:.1%} |{scores} {row.steps:.2f} |",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
