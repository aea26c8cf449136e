"""Answer with the network in training: the entropy-bound sampler, and quick scores for the log.

Small and batched. The scores that are published come from `evaluate.py`, which uses `transformers`.
"""

import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from batches import Encoder
from make_tokenizer import END_OF_TURN, EOS
from network import CANVAS_LENGTH, Layout, Network
from tasks import TASKS, Example, held_out_sudoku

T_MIN, T_MAX, ENTROPY_BOUND = 0.4, 0.8, 0.1


@torch.no_grad()
def denoise(
    network: Network,
    clean: torch.Tensor,
    valid: torch.Tensor,
    *,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """The next canvas of every row [B, L]."""
    vocab, layout = network.shape.vocab_size, Layout(clean.shape[1], 0, 1)
    shape = (len(clean), CANVAS_LENGTH)
    canvas = torch.randint(0, vocab, shape, generator=generator)
    logits = None
    for left in range(steps, 0, -1):
        with torch.autocast("cpu", torch.bfloat16):
            _, hidden, _ = network(clean, valid, canvas, layout, logits)
            logits = network.head(hidden) / (T_MIN + (T_MAX - T_MIN) * left / steps)
        log_probability = F.log_softmax(logits, -1)
        probability = log_probability.exp()
        drawn = torch.multinomial(probability.flatten(0, 1), 1, generator=generator).view(shape)
        entropy = -(probability * log_probability).sum(-1)
        ascending, order = entropy.sort(-1)
        within = ascending.cumsum(-1) - ascending <= ENTROPY_BOUND
        accepted = torch.zeros(shape, dtype=torch.bool).scatter(1, order, within)
        canvas = torch.where(accepted, drawn, torch.randint(0, vocab, shape, generator=generator))
    return logits.argmax(-1)


def reply(
    network: Network,
    encoder: Encoder,
    examples: Sequence[Example],
    *,
    canvases: int,
    steps: int = 16,
    seed: int = 0,
) -> list[str]:
    """Replies of at most `canvases` canvases, cut at the end of the turn."""
    prompts = [encoder.prompt(example) for example in examples]
    longest = max(map(len, prompts))
    clean = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    valid = torch.tensor(
        [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(canvases):
        canvas = denoise(network, clean, valid, steps=steps, generator=generator)
        clean = torch.cat([clean, canvas], 1)
        valid = torch.cat([valid, torch.ones_like(canvas, dtype=torch.bool)], 1)
    texts = []
    for row in clean[:, longest:].tolist():
        end = next((place for place, id_ in enumerate(row) if id_ in (END_OF_TURN, EOS)), len(row))
        texts.append(encoder.tokenizer.decode(row[:end], skip_special_tokens=False))
    return texts


def quick_scores(network: Network, encoder: Encoder) -> dict[str, float]:
    """Share of right replies for a few tasks: cheap, and only for the log."""
    draws: dict[str, tuple[Callable[[random.Random], Example], int]] = {
        "sudoku": (TASKS["sudoku"], 48),
        "held-out sudoku": (held_out_sudoku, 48),
        "story": (TASKS["story"], 12),
        "add": (TASKS["add"], 16),
        "system": (TASKS["system"], 16),
        "turns": (TASKS["turns"], 16),
        "thinking": (TASKS["thinking"], 16),
    }
    scores = {}
    for task, (draw, count) in draws.items():
        rng = random.Random(f"quick {task}")
        examples = [draw(rng) for _ in range(count)]
        canvases, steps = (3, 16) if task == "story" else (1, 8)
        replies = reply(network, encoder, examples, canvases=canvases, steps=steps)
        right = [example.is_right(text) for example, text in zip(examples, replies, strict=True)]
        scores[task] = round(sum(right) / count, 3)
    return scores
