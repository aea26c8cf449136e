"""A conversation taken turn by turn with a session, and each turn again by a cold runtime.

talk = Talk(runtime)
talk.turn("Hello")             the session answers; the draws are recorded
talk.check(talk.turns[-1])     a cold run under these draws gives the same logits and tokens
"""

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import mlx.core as mx
import tiny
from tolerances import REREAD_LOGITS

from mlx_diffusiongemma import RecordingDraws, ReplayedDraws, Runtime, SeededDraws
from mlx_diffusiongemma.config import GenerationConfig, parse_config
from mlx_diffusiongemma.events import Finished, PromptProcessed
from mlx_diffusiongemma.hub import resolve
from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings
from mlx_diffusiongemma.text import Tokenizer


class WatchedModel:
    """A model that remembers which tokens it read and which logits it predicted."""

    def __init__(self, model):
        self._model = model
        self.config = model.config
        self.parameters = model.parameters
        self.make_cache = model.make_cache
        self.compute_dtype = model.compute_dtype
        self.prefill_rows, self.predict_rows = model.prefill_rows, model.predict_rows
        self.forget()

    def forget(self):
        self.read, self.logits = [], []

    def prefill(self, tokens, cache):
        self.read.append(tokens[0].tolist())
        return self._model.prefill(tokens, cache)

    def predict(self, canvas, cache, belief):
        logits = self._model.predict(canvas, cache, belief)
        self.logits.append(logits.values())
        return logits


def watched(runtime: Runtime) -> Runtime:
    """The same runtime, its model watched."""
    return Runtime(
        model=WatchedModel(runtime.model),
        tokenizer=runtime.tokenizer,
        config=runtime.config,
        generation_config=runtime.generation_config,
        load_seconds=runtime.load_seconds,
    )


def random_runtime(
    folder: Path, *, seed: int, window: int, canvas_length: int = 8, vocab_size: int = 1024
) -> Runtime:
    """A tiny model of random weights that speaks with the demo's tokenizer, in float32."""
    values = tiny.config_values(vocab_size=vocab_size, sliding_window=window)
    values["canvas_length"] = canvas_length
    model = tiny.load(folder, values, tiny.random_tensors(values, seed=seed))
    return Runtime(
        model=WatchedModel(model),
        tokenizer=Tokenizer.load(resolve("demo")),
        config=parse_config(values),
        generation_config=GenerationConfig(SamplerSettings(), frozenset()),
        load_seconds=0.0,
    )


@dataclass
class Turn:
    """One answer of a session."""

    messages: list
    options: GenerationOptions
    prompt: PromptProcessed
    result: object
    trace: object
    prompt_ids: list
    read: list = field(repr=False)
    logits: list = field(repr=False)


class Talk:
    """A session, the turns it took, and the tokens that its cache ought to hold."""

    def __init__(self, runtime: Runtime, options: GenerationOptions, **limits):
        self.runtime = runtime
        self.options = options
        self.session = runtime.session(**limits)
        self.held: list[int] = []

    def turn(self, message, seed: int = 0) -> Turn:
        """Take a turn, and check that what was read is what the event says."""
        model, draws = self.runtime.model, RecordingDraws(SeededDraws(seed))
        model.forget()
        messages = self.messages(message)
        prompt_ids = self.runtime.tokenizer.encode_prompt(messages)
        events = self.session.stream(message, self.options, draws=draws)
        prompt = next(events)
        (result,) = (event.result for event in events if isinstance(event, Finished))
        self._check_reading(prompt, prompt_ids)
        turn = Turn(
            messages,
            self.options,
            prompt,
            result,
            draws.trace,
            prompt_ids,
            list(model.read),
            list(model.logits),
        )
        self.check(turn)
        return turn

    def messages(self, message) -> list:
        if isinstance(message, str):
            return [*self.session.messages, {"role": "user", "content": message}]
        return message

    def interrupted(self, message, events: int) -> None:
        """A turn that is cancelled after so many events."""
        model, before = self.runtime.model, self.session.messages
        model.forget()
        prompt_ids = self.runtime.tokenizer.encode_prompt(self.messages(message))
        stream = self.session.stream(message, self.options, draws=SeededDraws(99))
        first = [next(stream) for _ in range(events)][0]
        stream.close()
        self._check_reading(first, prompt_ids)
        assert self.session.messages == before

    def check(self, turn: Turn) -> None:
        """The same messages and draws in a cold run give the same logits and the same answer."""
        model = self.runtime.model
        model.forget()
        cold = self.runtime.generate(turn.messages, turn.options, draws=ReplayedDraws(turn.trace))
        assert len(model.logits) == len(turn.logits)
        for warm, again in zip(turn.logits, model.logits, strict=True):
            error = mx.abs(warm - again).max().item()
            assert error <= REREAD_LOGITS * mx.abs(again).max().item()
        assert turn.result.token_ids == cold.token_ids
        assert (turn.result.text, turn.result.thought) == (cold.text, cold.thought)
        assert turn.result.finish_reason == cold.finish_reason

    def _check_reading(self, prompt: PromptProcessed, prompt_ids: list) -> None:
        """What was read is the prompt from where the cache was kept, and then whole canvases."""
        pairs = zip(self.held, prompt_ids, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        cached = prompt.cached_tokens
        read = list(self.runtime.model.read)
        if cached < len(prompt_ids):
            assert read.pop(0) == prompt_ids[cached:]
        assert (prompt.prompt_tokens, prompt.reread_tokens) == (len(prompt_ids), shared - cached)
        assert {len(block) for block in read} <= {self.runtime.config.canvas_length}
        self.held = [*prompt_ids, *(token for block in read for token in block)]
        assert self.session.cached_tokens == len(self.held)
