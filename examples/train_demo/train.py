"""Train the demo model: `python examples/train_demo/train.py --out build/train_demo`.

    every step: one batch of each bucket --> diffusion loss + 0.3 next-token loss + balance loss
    Muon for matrices, AdamW for the rest, an averaged copy of the weights is what is kept

Stop it at any time and continue with `--resume`. It writes `state.pt`, `train.log` and, about every
quarter of an hour, a complete checkpoint in `checkpoint/`.
"""

import argparse
import json
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import make_tokenizer
import torch
import torch.nn.functional as F
from batches import Batch, Encoder, add_noise, buckets_of, draw_batch
from export import export
from network import Network, Shape
from sampler import quick_scores
from tokenizers import Tokenizer

NEXT_TOKEN_WEIGHT = 0.3
BALANCE_WEIGHT = 0.003
MUON_RATE, ADAM_RATE = 0.02, 3e-3
WARMUP_STEPS = 100
FLAT_SHARE = 0.5  # of the run at full rate, then cosine to `LOWEST_RATE`
LOWEST_RATE = 0.02
AVERAGE = 0.998
SAVE_EVERY = 3  # minutes


@dataclass
class Progress:
    """What a resumed run must know besides weights."""

    step: int = 0
    seconds: float = 0.0


def rate_factor(step: int, done: float) -> float:
    """Learning-rate factor; `done` is the share of the run that lies behind."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    if done < FLAT_SHARE:
        return warm
    return warm * max(
        LOWEST_RATE, 0.5 * (1 + math.cos(math.pi * (done - FLAT_SHARE) / (1 - FLAT_SHARE)))
    )


def diffusion_and_next_token_loss(
    network: Network, batch: Batch, canvas: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both losses of a batch and the balance loss.

    Half of the rows are self-conditioned: they see the logits of a first pass, divided by a
    temperature as the sampler does.
    """
    half = len(canvas) // 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, hidden, _ = network(batch.clean[:half], batch.valid[:half], canvas[:half], batch.layout)
        temperature = 0.4 + 0.6 * torch.rand(half, 1, 1, generator=generator)
        previous = network.head(hidden) / temperature
    with torch.autocast("cpu", torch.bfloat16):
        clean_hidden, hidden, balance = network(
            batch.clean, batch.valid, canvas, batch.layout, previous
        )
        logits = network.head(hidden)
        weight = batch.weight
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), reduction="none")
        diffusion = (loss * weight.flatten()).sum() / weight.sum()
        if batch.layout.clean_canvases < batch.layout.canvases:
            return diffusion, diffusion.new_zeros(()), balance
        answered = clean_hidden[:, batch.layout.prompt_length - 1 : -1]
        real = (batch.target != make_tokenizer.EOS).float()
        loss = F.cross_entropy(
            network.head(answered).flatten(0, 1), batch.target.flatten(), reduction="none"
        )
        causal = (loss * real.flatten()).sum() / real.sum()
    return diffusion, causal, balance


class Trainer:
    """Network, its averaged copy, optimisers and progress; all that a state file holds."""

    def __init__(self, shape: Shape, encoder: Encoder, *, seed: int):
        torch.manual_seed(seed)
        self.shape, self.encoder, self.seed = shape, encoder, seed
        self.network = Network(shape)
        self.averaged = Network(shape)
        self.averaged.load_state_dict(self.network.state_dict())
        named = list(self.network.named_parameters())
        is_matrix = {
            name: p.ndim == 2 and name != "embedding" and "router" not in name for name, p in named
        }
        matrices = [p for name, p in named if is_matrix[name]]
        rest = [p for name, p in named if not is_matrix[name]]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.progress = Progress()

    def step(self, done: float) -> tuple[float, float]:
        """One optimiser step over a batch of every bucket; draws depend on the step number only."""
        number = self.progress.step
        rng = random.Random(f"{self.seed} {number}")
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        for optimiser, rate in zip(self.optimisers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * rate_factor(number, done)
            optimiser.zero_grad(set_to_none=True)
        buckets = buckets_of(number)
        total = sum(bucket.rows * bucket.canvases for bucket in buckets)
        diffusion_sum = causal_sum = 0.0
        for bucket in buckets:
            batch = draw_batch(bucket, self.encoder, rng)
            canvas = add_noise(batch.target, self.shape.vocab_size, generator)
            diffusion, causal, balance = diffusion_and_next_token_loss(
                self.network, batch, canvas, generator
            )
            share = bucket.rows * bucket.canvases / total
            ((diffusion + NEXT_TOKEN_WEIGHT * causal + BALANCE_WEIGHT * balance) * share).backward()
            diffusion_sum += share * diffusion.item()
            causal_sum += share * causal.item()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self._average(min(AVERAGE, (number + 1) / (number + 20)))
        self.progress.step += 1
        return diffusion_sum, causal_sum

    @torch.no_grad()
    def _average(self, keep: float) -> None:
        torch._foreach_lerp_(
            list(self.averaged.parameters()), list(self.network.parameters()), 1 - keep
        )

    def save(self, path: Path) -> None:
        """Write everything, replacing the old state only when the new one is complete."""
        state = {
            "shape": asdict(self.shape), "seed": self.seed, "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(), "progress": asdict(self.progress),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }  # fmt: skip
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a state file."""
        state = torch.load(path)
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.progress = Progress(**state["progress"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)

    def compile(self) -> None:
        """Fuse the elementwise work; layers of a kind share their compiled code."""
        torch._dynamo.config.recompile_limit = 64
        for layer in self.network.layers:
            layer.compile(dynamic=False)
        self.network.condition = torch.compile(self.network.condition, dynamic=False)
        self.network.head = torch.compile(self.network.head, dynamic=False)


def arguments() -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/train_demo"))
    parser.add_argument("--steps", type=int, default=5235, help="optimiser steps of the whole run")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="shorten the run to this time"
    )
    parser.add_argument("--resume", action="store_true", help="continue from OUT/state.pt")
    parser.add_argument(
        "--compile", action="store_true", help="compile the layers (minutes, then faster steps)"
    )
    parser.add_argument(
        "--export-every", type=float, default=15, help="minutes between checkpoints"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train until the steps or the minutes are used up."""
    options = arguments()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer_folder = options.out / "tokenizer"
    if not options.resume:  # the weights go with the tokenizer that they were trained with
        make_tokenizer.save(tokenizer_folder)
    encoder = Encoder(Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json")))
    trainer = Trainer(Shape(), encoder, seed=options.seed)
    if options.resume:
        trainer.load(options.out / "state.pt")
    if options.compile:
        trainer.compile()

    with (options.out / "train.log").open("a", buffering=1) as log:
        run(trainer, options, log)


def run(trainer: Trainer, options: argparse.Namespace, log: TextIO) -> None:
    """Step until the end; save the state every few minutes, the checkpoint less often."""

    def publish(word: str) -> None:
        export(trainer.averaged, options.out / "tokenizer", options.out / "checkpoint")
        scores = quick_scores(trainer.averaged, trainer.encoder)
        log.write(f"{word} {progress.step} {progress.seconds:.0f}s {json.dumps(scores)}\n")

    progress = trainer.progress
    begun = time.monotonic() - progress.seconds
    saved = published = time.monotonic()
    recent: list[tuple[float, float]] = []
    while progress.step < options.steps and progress.seconds < 60 * options.minutes:
        done = max(progress.step / options.steps, progress.seconds / 60 / options.minutes)
        recent.append(trainer.step(done))
        progress.seconds = time.monotonic() - begun
        if progress.step % 50 == 0:
            means = [sum(values) / len(values) for values in zip(*recent, strict=True)]
            line = f"step {progress.step} {progress.seconds:.0f}s"
            log.write(f"{line} diffusion {means[0]:.4f} next {means[1]:.4f}\n")
            recent.clear()
        if time.monotonic() - saved > 60 * SAVE_EVERY:
            trainer.save(options.out / "state.pt")
            saved = time.monotonic()
        if time.monotonic() - published > 60 * options.export_every:
            publish("scores")
            published = time.monotonic()
    trainer.save(options.out / "state.pt")
    publish("end")


if __name__ == "__main__":
    main()
