"""Which of some texts the model would answer with: read off it in a pass, nothing is generated.

    choices --> tree of tokens --> canvas for each branching: written so far | noise --> one pass
            --> what each branching leaves to its ways --> product along each choice

A choice costs nothing where it is alone: a longer one is as likely as a shorter one that the model
likes as much. n choices have at most n - 1 branchings.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.errors import ConstraintError, GenerationError
from mlx_diffusiongemma.generation import check_prompt, context_of, read_prompt
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.options import SMALLEST_CANVAS, GenerationOptions
from mlx_diffusiongemma.passes import carried_out
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.ranges import Range
from mlx_diffusiongemma.responder import Prompt, Responder
from mlx_diffusiongemma.text import Tokenizer
from mlx_diffusiongemma.turns import turn

NOISES = 4
_END = -1  # in place of a token: the choice is whole
_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class ChoiceStats:
    """What a choice cost.

    Attributes:
        prompt_tokens: length of the prompt.
        branchings: places where the choices part; each is one canvas for every noise.
        noises: how many random canvases were asked, and their answers averaged.
        canvas_length: their positions.
        passes: passes of the network over canvases; those that read the prompt not counted.
        seed: what the noise was drawn from.
        load_seconds: time the model took to load, once.
        prefill_seconds, choosing_seconds: time of reading the prompt, and of the rest.
        peak_memory_bytes: see `GenerationStats`.
    """

    prompt_tokens: int
    branchings: int
    noises: int
    canvas_length: int
    passes: int
    seed: int
    load_seconds: float
    prefill_seconds: float
    choosing_seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class ChoiceResult:
    """What the model chooses.

    Attributes:
        choice: the most probable choice; of equal ones the first.
        probabilities: of every choice, in the order given; their sum is 1.
        stats: what it cost.
    """

    choice: str
    probabilities: Mapping[str, float]
    stats: ChoiceStats

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON; `choice` is called text, as in other answers."""
        return {
            "text": self.choice,
            "probabilities": dict(self.probabilities),
            "stats": asdict(self.stats),
        }


@dataclass(frozen=True)
class Branching:
    """A place where choices part.

    Attributes:
        written: the tokens before it.
        ways: the tokens that go on to some choice, `_END` where one ends here; two or more.
    """

    written: tuple[int, ...]
    ways: tuple[int, ...]


def branchings(choices: Sequence[tuple[int, ...]]) -> list[Branching]:
    """Where the choices part, given the tokens of each: fewer places than choices."""
    ways: dict[tuple[int, ...], dict[int, None]] = {}
    for tokens in choices:
        for at, way in enumerate((*tokens, _END)):
            ways.setdefault(tokens[:at], {})[way] = None
    return [Branching(written, tuple(them)) for written, them in ways.items() if len(them) > 1]


def choice_tokens(
    choices: Sequence[str], tokenizer: Tokenizer, longest: int
) -> list[tuple[int, ...]]:
    """The tokens of each choice; ConstraintError names one that is none, or exceeds `longest`."""
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintError(f"choices are {choices!r}", hint="give a list of texts")
    if len(choices) < 2:
        raise ConstraintError(
            f"{len(choices)} choices are given" if not choices else "one choice is given",
            hint="give two or more to choose from",
        )
    found: dict[tuple[int, ...], str] = {}
    for choice in choices:
        if not choice:
            raise ConstraintError("a choice is empty", hint="give texts that say something")
        if choice in found.values():
            raise ConstraintError(f"the choice {_short(choice)} is given twice")
        tokens = tuple(tokenizer.encode_text(choice))
        if tokens in found:
            raise ConstraintError(
                f"the choices {_short(found[tokens])} and {_short(choice)} have the same tokens",
                hint="the model cannot tell them apart: leave one out",
            )
        if tokenizer.special_token_ids & set(tokens):
            raise ConstraintError(f"the choice {_short(choice)} holds a special token")
        if len(tokens) > longest:
            raise ConstraintError(
                f"the choice {_short(choice)} has {len(tokens)} tokens",
                hint=f"a canvas of this model has room for {longest} and an end token",
            )
        found[tokens] = choice
    return list(found)


def choose(
    responder: Responder,
    prompt: Prompt,
    choices: Sequence[str],
    *,
    seed: int,
    noises: int,
    chat_template: bool,
) -> ChoiceResult:
    """See `Runtime.choose`."""
    Range(0, integer=True, high=2**64).check("seed", seed)
    Range(1, integer=True).check("noises", noises)
    config, started = responder.model.config, time.perf_counter()
    rows = choice_tokens(choices, responder.tokenizer, config.canvas_length - 1)
    prompt_ids = responder.encode(prompt, GenerationOptions(chat_template=chat_template))
    length = max(map(len, rows)) + 1
    length = min(max(length, SMALLEST_CANVAS), config.canvas_length)
    check_prompt(prompt_ids, context_of(config, None), length, config.vocab_size)
    cache = PrefixCache(responder.model)
    _read(responder, prompt_ids, cache)
    read = time.perf_counter()
    places = branchings(rows)
    noise = SeededDraws(seed).initial_canvas((noises, length), config.vocab_size)
    shares, passes = _shares(responder, cache, places, noise)
    odds = [_odds(tokens, shares) for tokens in rows]
    total = math.fsum(odds)
    probabilities = {choice: p / total for choice, p in zip(choices, odds, strict=True)}
    return ChoiceResult(
        choice=max(probabilities, key=lambda choice: probabilities[choice]),
        probabilities=probabilities,
        stats=ChoiceStats(
            prompt_tokens=len(prompt_ids),
            branchings=len(places),
            noises=noises,
            canvas_length=length,
            passes=passes,
            seed=seed,
            load_seconds=responder.load_seconds,
            prefill_seconds=read - started,
            choosing_seconds=time.perf_counter() - read,
            peak_memory_bytes=mx.get_peak_memory(),
        ),
    )


def _read(responder: Responder, prompt_ids: list[int], cache: PrefixCache) -> None:
    """Read the prompt, a turn for each part of it."""
    with turn():
        mx.reset_peak_memory()
        responder.check_range(prompt_ids, cache)
    parts = carried_out(read_prompt(cache, prompt_ids, ()), cache.predict, cache.read)
    more = True
    while more:
        with turn():
            more = next(parts, None) is not None


def _shares(
    responder: Responder, cache: PrefixCache, places: Sequence[Branching], noise: mx.array
) -> tuple[dict[tuple[int, ...], dict[int, float]], int]:
    """By what is written before it, the share of each way of a branching; and how many passes.

    Canvases see one cache, which they do not change; a pass holds as many as the reading of a
    prompt has tokens.
    """
    found = {place.written: np.zeros(len(place.ways)) for place in places}
    noises, length = noise.shape
    canvases = [(place, index) for place in places for index in range(noises)]
    most = max(PREFILL_CHUNK // length, 1)
    passes = 0
    for start in range(0, len(canvases), most):
        part = canvases[start : start + most]
        passes += 1
        with turn():
            for place, share in _pass(responder, cache, part, noise):
                found[place.written] += share / noises
    ways = {place.written: place.ways for place in places}
    return {
        written: dict(zip(ways[written], share.tolist(), strict=True))
        for written, share in found.items()
    }, passes


def _pass(
    responder: Responder,
    cache: PrefixCache,
    part: Sequence[tuple[Branching, int]],
    noise: mx.array,
) -> Iterator[tuple[Branching, np.ndarray]]:
    """The shares of the ways, float64, for each branching on one of the noises."""
    ends = mx.array(sorted(responder.end_ids))
    canvases = [
        mx.concatenate(
            [mx.array([place.written], mx.int32), noise[i : i + 1, len(place.written) :]], 1
        )
        if place.written
        else noise[i : i + 1]
        for place, i in part
    ]
    logits = responder.model.predict_rows(canvases, [cache.kv] * len(part), [None] * len(part))[
        ::-1
    ]
    for place, _ in part:
        row = logits.pop().values()[0, len(place.written)]
        ways = [mx.logsumexp(row[ends]) if way == _END else row[way] for way in place.ways]
        scores = np.array(mx.stack(ways)).astype(np.float64)
        if not np.isfinite(scores).all():
            raise GenerationError(
                "the logits of a choice are not finite numbers",
                hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
            )
        likely = np.exp(scores - scores.max())
        yield place, likely / likely.sum()


def _odds(tokens: tuple[int, ...], shares: Mapping[tuple[int, ...], Mapping[int, float]]) -> float:
    steps = ((tokens[:at], way) for at, way in enumerate((*tokens, _END)))
    return math.prod(shares[written][way] for written, way in steps if written in shares)


def _short(choice: str) -> str:
    return repr(choice if len(choice) <= _SHOWN else choice[:_SHOWN] + "…")
