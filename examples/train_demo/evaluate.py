"""Score a checkpoint through `transformers`: `python examples/train_demo/evaluate.py CHECKPOINT`.

Diffusion replies come from transformers' own `generate()` in float32, left-to-right replies from
the encoder with the same weights. Prints a table with 95 % Wilson intervals; `--json` keeps the
numbers.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import stories
import torch
from make_tokenizer import END_OF_TURN, EOS
from tasks import TASKS, Example, held_out_sudoku
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion

BATCH = 128
STEPS = 24
CURVE = (1, 2, 4, 8, 16)  # the full-size scores are the point at 24
LONGEST_ANSWER = {"story": 96}  # tokens; one canvas for every other task
COUNTS = {"sudoku": 1024, "held-out sudoku": 512, "story": 512}
OTHER_COUNT = 128
CURVE_COUNT = 256
DRAWS: dict[str, Callable[[random.Random], Example]] = {
    "sudoku": TASKS["sudoku"],
    "held-out sudoku": held_out_sudoku,
    **TASKS,
}


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share."""
    z = 1.959964
    middle = (right + z * z / 2) / (count + z * z)
    spread = z / (count + z * z) * math.sqrt(right * (count - right) / count + z * z / 4)
    return max(0.0, middle - spread), min(1.0, middle + spread)


class Judge:
    """A loaded checkpoint that answers examples in batches."""

    def __init__(self, folder: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=torch.float32)
        self.model.eval()
        self.forward_passes: list[float] = []

    def prompts(self, examples: list[Example]) -> dict[str, torch.Tensor]:
        """Left-padded ids and mask, through the checkpoint's own chat template."""
        texts = [
            self.tokenizer.apply_chat_template(
                example.messages,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=example.thinking,
            )
            for example in examples
        ]
        encoded = self.tokenizer(texts, add_special_tokens=False, return_tensors="pt", padding=True)
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}

    def text(self, ids: list[int]) -> str:
        """The reply up to its end of turn, control tokens of the thought channel kept."""
        ends = [place for place, id_ in enumerate(ids) if id_ in (END_OF_TURN, EOS)]
        return self.tokenizer.decode(ids[: ends[0] if ends else None], skip_special_tokens=False)

    @torch.no_grad()
    def diffuse(self, examples: list[Example], *, steps: int, length: int) -> list[str]:
        """Replies of `generate()` with the checkpoint's own settings but the number of steps."""
        prompts = self.prompts(examples)
        output = self.model.generate(**prompts, max_denoising_steps=steps, max_new_tokens=length)
        self.forward_passes.append(output.tokens_per_forward.float().mean().item())
        new = output.sequences[:, prompts["input_ids"].shape[1] :]
        return [self.text(row) for row in new.tolist()]

    @torch.no_grad()
    def write_left_to_right(self, examples: list[Example], *, length: int) -> list[str]:
        """Greedy replies, one token after the other, from the encoder's next-token logits."""
        prompts = self.prompts(examples)
        ids, mask, cache = prompts["input_ids"], prompts["attention_mask"], None
        written: list[torch.Tensor] = []
        feed = ids
        for _ in range(length):
            position = torch.arange(mask.shape[1])[None, -feed.shape[1] :]
            output = self.model.model.encoder(
                input_ids=feed, attention_mask=mask, cache=cache, position_ids=position
            )
            cache = output.cache
            feed = self.model.lm_head(output.last_hidden_state[:, -1:]).argmax(-1)
            written.append(feed)
            mask = torch.cat([mask, torch.ones_like(feed)], 1)
        return [self.text(row) for row in torch.cat(written, 1).tolist()]


def score(judge: Judge, task: str, count: int, *, steps: int | None, seed: int) -> dict[str, Any]:
    """Right replies among `count` fresh examples; `steps` None writes left to right."""
    rng = random.Random(f"evaluate {task} {seed}")
    examples = [DRAWS[task](rng) for _ in range(count)]
    length = LONGEST_ANSWER.get(task, 32)
    torch.manual_seed(seed)
    begun, right, agreeing = time.monotonic(), 0, 0
    judge.forward_passes.clear()
    for start in range(0, count, BATCH):
        batch = examples[start : start + BATCH]
        if steps is None:
            replies = judge.write_left_to_right(batch, length=length)
        else:
            replies = judge.diffuse(batch, steps=steps, length=length)
        right += sum(example.is_right(reply) for example, reply in zip(batch, replies, strict=True))
        if task == "story":
            pairs = zip(batch, replies, strict=True)
            agreeing += sum(stories.agrees(example.request, reply) for example, reply in pairs)
    low, high = wilson(right, count)
    passes = judge.forward_passes
    return {
        "task": task,
        "mode": "left to right" if steps is None else f"{steps} steps",
        "right": right,
        "count": count,
        "share": right / count,
        "low": low,
        "high": high,
        "tokens_per_forward": round(sum(passes) / len(passes), 2) if passes else 1.0,
        "seconds": round(time.monotonic() - begun, 1),
        **({"agreeing": agreeing} if task == "story" else {}),
    }


def measurements(judge: Judge, tasks: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """All scores of the table: full size, the steps curve, left to right."""
    for task in tasks:
        yield score(judge, task, COUNTS.get(task, OTHER_COUNT), steps=STEPS, seed=seed)
    for task in tasks:
        if task in COUNTS and task != "held-out sudoku":
            for steps in CURVE:
                yield score(judge, task, CURVE_COUNT, steps=steps, seed=seed + 1)
    for task in tasks:
        count = CURVE_COUNT if task in COUNTS else OTHER_COUNT
        yield score(judge, task, count, steps=None, seed=seed + 2)


def main() -> None:
    """Print one line of the table for every measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tasks", default=",".join(DRAWS), help="comma-separated tasks")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge = Judge(options.checkpoint)
    results = []
    print("| task | mode | right | share | 95 % interval | tokens per forward |")
    print("| --- | --- | --- | --- | --- | --- |")
    for result in measurements(judge, options.tasks.split(","), options.seed):
        results.append(result)
        print(
            f"| {result['task']} | {result['mode']} | {result['right']}/{result['count']} "
            f"| {result['share']:.1%} | {result['low']:.1%} - {result['high']:.1%} "
            f"| {result['tokens_per_forward']} |",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
