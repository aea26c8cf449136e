"""What a recording runs: prompts, canvases, whole generations, and how much of it is kept.

A suite becomes inputs in one of two ways: fresh ones for a model (`fresh_inputs`), or those of
another trace (`inputs_of`), with its draws and the tokens whose logits it kept, so that the two
can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mlx_diffusiongemma.config import GenerationConfig, ModelConfig
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.layout import DRAWS, INPUTS, LOGITS, expected_arrays
from mlx_diffusiongemma.parity.trace import (
    Architecture,
    Arrays,
    GenerationCase,
    Manifest,
    ModelFacts,
    PassCase,
    Producer,
    Sampling,
    Trace,
)

_TEXT = (
    "Tell me how a lighthouse works, who kept it when there was no electricity, and why ships "
    "still look for its light although they know to the metre where they are."
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A prompt of a whole generation, and how many canvases its answer may take."""

    name: str
    text: str
    canvases: int


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What to record of any model.

    Attributes:
        cases: name -> tokens of the prompt, from the length of the sliding window.
    """

    name: str
    sampling: Sampling
    windows: Mapping[str, tuple[int, int]]
    questions: tuple[Question, ...]

    def prompt_tokens(self, case: str, window: int) -> int:
        """How long the prompt of a case is: so many windows and so many tokens."""
        windows, tokens = self.windows[case]
        return windows * window + tokens


# "short" ends inside the first window; "long" is past it, so that every layer has lost tokens.
_CASES = {"short": (0, 23), "long": (2, 3)}
DEFAULT = Suite(
    name="default",
    sampling=Sampling(positions=16, channels=512, logits=64, feed=32),
    windows=_CASES,
    questions=(
        Question(name="colour", text="What colour is the sky?", canvases=1),
        Question(name="story", text="Tell me a story about a fox.", canvases=4),
        Question(name="list", text="Sort: 7 3 9 1", canvases=2),
    ),
)
SMALL = Suite(
    name="small",
    sampling=Sampling(positions=4, channels=32, logits=16, feed=16),
    windows={"long": _CASES["long"]},
    questions=(Question(name="story", text="Tell me a story about a fox.", canvases=3),),
)
SUITES = {suite.name: suite for suite in (DEFAULT, SMALL)}


def find_suite(name: str) -> Suite:
    """The suite of that name; ConfigError lists the names there are."""
    if name not in SUITES:
        raise ConfigError(f"there is no suite {name!r}", hint=f"suites: {', '.join(SUITES)}")
    return SUITES[name]


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a recording is made of.

    Attributes:
        arrays: by their names in the trace. For every case at least its token ids; from another
            trace also what is fed back and whose logits are kept, and the draws.
        generations: their `canvases` and `steps` are how many draws the arrays hold.
    """

    sampling: Sampling
    cases: tuple[PassCase, ...]
    generations: tuple[GenerationCase, ...]
    arrays: Arrays


class Encoder(Protocol):
    """Turns a prompt into token ids: the model's tokenizer and chat template."""

    def encode_prompt(self, prompt: str) -> Sequence[int]:
        """Token ids of one user message."""
        ...


def fresh_inputs(
    suite: Suite,
    config: ModelConfig,
    generation: GenerationConfig,
    encoder: Encoder | None,
    *,
    seed: int = 0,
) -> Inputs:
    """The suite for one model; without a tokenizer, prompts are random tokens.

    The same model and seed give the same inputs anywhere: they are drawn with numpy.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    text = _ids(encoder.encode_prompt(_TEXT)) if encoder else None
    cases = []
    for name in suite.windows:
        tokens = suite.prompt_tokens(name, config.sliding_window)
        case = PassCase(name=name, prompt_tokens=tokens)
        cases.append(case)
        arrays |= {f"passes/{name}/{k}": v for k, v in _tokens(rng, config, case, text).items()}
    generations = []
    for question in suite.questions:
        ids = _ids(encoder.encode_prompt(question.text)) if encoder else _random(rng, config, 9)
        arrays[f"generations/{question.name}/prompt"] = ids
        generations.append(
            GenerationCase(
                name=question.name,
                text=question.text if encoder else "",
                prompt_tokens=len(ids),
                answer_tokens=0,
                canvases=0,
                steps=0,
                max_tokens=question.canvases * config.canvas_length,
                eos_token_ids=tuple(sorted(generation.eos_token_ids)),
                settings=generation.sampler,
            )
        )
    return Inputs(suite.sampling, tuple(cases), tuple(generations), arrays)


def inputs_of(trace: Trace) -> Inputs:
    """The inputs of a trace, so that another model can be recorded on them."""
    wanted = {*INPUTS, *DRAWS, "logit_ids", "steps"}
    arrays = {n: a for n, a in trace.arrays.items() if n.rpartition("/")[2] in wanted}
    manifest = trace.manifest
    return Inputs(manifest.sampling, manifest.cases, manifest.generations, arrays)


def estimate(suite: Suite, config: ModelConfig, generation: GenerationConfig) -> dict[str, int]:
    """Most bytes of the arrays of a trace of such a model, by part; no weights are needed.

    Generations count with all the steps they may take.
    """
    inputs = fresh_inputs(suite, config, generation, None)
    limit = generation.sampler.max_denoising_steps
    longest = []
    for case in inputs.generations:
        canvases = -(-case.max_tokens // config.canvas_length)
        steps = canvases * limit
        longest.append(replace(case, canvases=canvases, steps=steps, answer_tokens=case.max_tokens))
    manifest = Manifest(
        model=ModelFacts(name="", revision="", weights="", architecture=Architecture.of(config)),
        producer=Producer(backend="", device="", dtype="", precision="", versions={}),
        sampling=inputs.sampling,
        cases=inputs.cases,
        generations=tuple(longest),
    )
    parts: dict[str, int] = {"inputs": 0, "layers": 0, "logits": 0, "generations": 0}
    for name, spec in expected_arrays(manifest).items():
        parts[_part_of(name)] += spec.nbytes
    return parts


def _part_of(name: str) -> str:
    if name.startswith("generations/"):
        return "generations"
    leaf = name.rpartition("/")[2]
    if leaf in LOGITS:
        return "logits"
    return "inputs" if leaf in INPUTS else "layers"


def _tokens(
    rng: np.random.Generator, config: ModelConfig, case: PassCase, text: np.ndarray | None
) -> dict[str, Any]:
    """Token ids of one case: text where there is a tokenizer; canvases are noise, or half of it."""
    length = config.canvas_length
    first, noise, other = (_random(rng, config, length) for _ in range(3))
    prompt = _random(rng, config, case.prompt_tokens)
    block = other
    if text is not None:
        prompt = np.resize(text, case.prompt_tokens)
        block = np.resize(text, length)
    keep = rng.random(length) < 0.5
    second = np.where(keep, block, noise).astype(np.int32)
    return {"prompt": prompt, "canvas": first, "block": block, "second_canvas": second}


def _random(rng: np.random.Generator, config: ModelConfig, size: int) -> np.ndarray:
    """Random tokens; never an image's, which would need pixels."""
    allowed = np.setdiff1d(np.arange(config.vocab_size), sorted(config.image_token_ids))
    return rng.choice(allowed, size=size).astype(np.int32)


def _ids(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, np.int32)
