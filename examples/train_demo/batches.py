"""Turn examples into training batches: token ids, noise, and the three shapes of batch.

A row is  [ left-padded prompt | clean answer canvases ]  +  [ noisy canvases ].  The clean part is
what the encoder reads; every noisy canvas is denoised on its own, given the clean part before it.
Letters: B rows, S clean length, K canvases of a row, L canvas length.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from chat_format import render
from make_tokenizer import END_OF_TURN, EOS
from network import CANVAS_LENGTH, Layout
from tasks import TASKS, Example
from tokenizers import Tokenizer

FILL_WEIGHT = 0.15  # weight of the <eos> tokens that fill a canvas after the end of the turn


@dataclass(frozen=True)
class Bucket:
    """A shape of batch and the tasks that go into it (task -> share).

    It is drawn on every `every`-th step. With `next_token` the clean part holds the whole answer,
    for the encoder's next-token loss.
    """

    rows: int
    prompt_length: int
    canvases: int
    every: int
    next_token: bool
    shares: Mapping[str, float]

    @property
    def layout(self) -> Layout:
        """The clean part ends where the last canvas begins, or after it for the next-token loss."""
        return Layout(
            self.prompt_length,
            self.canvases if self.next_token else self.canvases - 1,
            self.canvases,
        )


STORIES = Bucket(
    rows=8, prompt_length=48, canvases=3, every=1, next_token=True, shares={"story": 1.0}
)  # fmt: skip
# Sudoku first: it is mostly learned in the first stage and then makes room for the rest.
EARLY = (
    Bucket(
        rows=56, prompt_length=36, canvases=1, every=1, next_token=False,
        shares={"sudoku": 0.68, "add": 0.11, "sort": 0.05, "small talk": 0.02, "fact": 0.02,
                "unknown": 0.03, "json": 0.05, "gap": 0.04},
    ),
    Bucket(
        rows=16, prompt_length=72, canvases=1, every=2, next_token=True,
        shares={"system": 0.26, "turns": 0.28, "thinking": 0.16, "sudoku": 0.1, "add": 0.05,
                "sort": 0.05, "small talk": 0.02, "fact": 0.02, "unknown": 0.02, "json": 0.02,
                "gap": 0.02},
    ),
    STORIES,
)  # fmt: skip
MIDDLE = (
    Bucket(
        rows=56, prompt_length=36, canvases=1, every=1, next_token=False,
        shares={"sudoku": 0.4, "add": 0.22, "sort": 0.1, "small talk": 0.05, "fact": 0.06,
                "unknown": 0.05, "json": 0.06, "gap": 0.06},
    ),
    Bucket(
        rows=16, prompt_length=72, canvases=1, every=1, next_token=True,
        shares={"system": 0.26, "turns": 0.28, "thinking": 0.22, "sudoku": 0.08, "add": 0.04,
                "sort": 0.04, "small talk": 0.02, "fact": 0.02, "unknown": 0.01, "json": 0.02,
                "gap": 0.01},
    ),
    STORIES,
)  # fmt: skip
# Thoughts last: sums inside a thought are learned slowest.
LATE = (
    MIDDLE[0],
    Bucket(
        rows=16, prompt_length=72, canvases=1, every=1, next_token=True,
        shares={"system": 0.17, "turns": 0.23, "thinking": 0.48, "sudoku": 0.04, "add": 0.02,
                "sort": 0.02, "small talk": 0.01, "fact": 0.01, "unknown": 0.01, "json": 0.01},
    ),
    STORIES,
)  # fmt: skip
# Stories at the end: two thirds of the steps are stories alone.
LAST = (replace(MIDDLE[0], every=3), replace(LATE[1], every=3), STORIES)
STAGES = ((4183, LAST), (3266, LATE), (1185, MIDDLE), (0, EARLY))  # (first step, batches)


def buckets_of(step: int) -> list[Bucket]:
    """The batches of a step."""
    buckets = next(buckets for first, buckets in STAGES if step >= first)
    return [bucket for bucket in buckets if step % bucket.every == 0]


# Tasks whose longest requests do not fit and are drawn again; any other task must fit.
MAY_BE_REDRAWN = {"unknown", "turns", "system"}


@dataclass(frozen=True)
class Batch:
    """Clean ids [B, S] and which of them are real [B, S]; target canvases [B, K*L]."""

    clean: torch.Tensor
    valid: torch.Tensor
    target: torch.Tensor
    layout: Layout

    @property
    def weight(self) -> torch.Tensor:
        """Weight of every target position [B, K*L]."""
        return torch.where(self.target == EOS, FILL_WEIGHT, 1.0)


class Encoder:
    """Examples to ids with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Ids of a text that spells its own control tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, example: Example) -> list[int]:
        """Ids of the rendered conversation."""
        return self.ids(render(example.messages, thinking=example.thinking))

    def answer(self, example: Example) -> list[int]:
        """Ids of the answer with its end of turn."""
        return [*self.ids(example.answer), END_OF_TURN]


def draw_batch(bucket: Bucket, encoder: Encoder, rng: random.Random) -> Batch:
    """A batch of the bucket's tasks."""
    layout = bucket.layout
    tasks, shares = list(bucket.shares), list(bucket.shares.values())
    clean, valid, target = [], [], []
    while len(clean) < bucket.rows:
        task = rng.choices(tasks, shares)[0]
        example = TASKS[task](rng)
        prompt, answer = encoder.prompt(example), encoder.answer(example)
        fits = (
            len(prompt) <= bucket.prompt_length and len(answer) <= bucket.canvases * CANVAS_LENGTH
        )
        if not fits:
            assert task in MAY_BE_REDRAWN, (
                f"{task} does not fit: {len(prompt)} and {len(answer)} tokens"
            )
            continue
        answer += [EOS] * (bucket.canvases * CANVAS_LENGTH - len(answer))
        padding = bucket.prompt_length - len(prompt)
        row = [0] * padding + prompt + answer[: layout.clean_canvases * CANVAS_LENGTH]
        clean.append(row)
        valid.append([False] * padding + [True] * (len(row) - padding))
        target.append(answer)
    return Batch(torch.tensor(clean), torch.tensor(valid), torch.tensor(target), layout)


def add_noise(target: torch.Tensor, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    """Replace tokens of every canvas by random ones, at a level drawn for each canvas.

    Levels lean towards noise (density 2t): a nearly clean canvas teaches little. One canvas in six
    is all noise, as at the first denoising step. One in eight is noisy only in the middle, its two
    sides clean, so that text can be filled in between given sides.
    """
    canvases = target.view(-1, CANVAS_LENGTH)
    count = len(canvases)
    kind = torch.rand(count, 1, generator=generator)
    level = torch.rand(count, 1, generator=generator).sqrt()
    level = torch.where(kind < 1 / 6, 1.0, level)
    noisy = torch.rand(canvases.shape, generator=generator) < level

    sides = torch.randint(0, CANVAS_LENGTH, (count, 2), generator=generator).sort(-1).values
    place = torch.arange(CANVAS_LENGTH)
    between = (place >= sides[:, :1]) & (place <= sides[:, 1:])
    dense = torch.rand(canvases.shape, generator=generator) < torch.where(
        kind > 11 / 12, 1.0, level
    )
    noisy = torch.where(kind > 7 / 8, between & dense, noisy)
    noise = torch.randint(0, vocab_size, canvases.shape, generator=generator)
    return torch.where(noisy, noise, canvases).view(target.shape)
