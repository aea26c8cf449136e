"""A loaded model as far as one answer needs it: prompts to token ids, options to a loop.

prompt, options --> Writing --> its loop, pass by pass --> events --> Finished(result)
"""

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import mlx.core as mx

from mlx_diffusiongemma.answer import AnswerStream
from mlx_diffusiongemma.autoregressive import token_loop
from mlx_diffusiongemma.config import GenerationConfig
from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.constraints.progress import ConstrainedText, follow
from mlx_diffusiongemma.constraints.stopwatch import ConstraintCost
from mlx_diffusiongemma.constraints.vocabulary import Vocabulary
from mlx_diffusiongemma.draws import Draws, SeededDraws
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.events import Event, Finished, GenerationResult, TokenEvent
from mlx_diffusiongemma.generation import alone, block_loop
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.sparse_conditioning import Digester, norms_of, table_of
from mlx_diffusiongemma.options import GenerationOptions, TokenSettings
from mlx_diffusiongemma.pace import Pace, left_to_right_is_faster, steps_within
from mlx_diffusiongemma.passes import Answer, Pass
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.presets import settings_for
from mlx_diffusiongemma.prompt_cache import Identity, model_fingerprint
from mlx_diffusiongemma.range_check import RangeCheck
from mlx_diffusiongemma.text import Message, Tokenizer
from mlx_diffusiongemma.turns import turn
from mlx_diffusiongemma.writing import Plan, Writing

Prompt = str | Sequence[Message]


@dataclass(frozen=True, eq=False)
class Responder:
    """A loaded model as far as one answer needs it; `Runtime` and `Session` share it."""

    model: DiffusionGemma
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    load_seconds: float
    range_check: RangeCheck | None = None
    pace: Pace = field(default_factory=Pace)

    @cached_property
    def identity(self) -> Identity:
        """What a prompt cache must have been made with."""
        return Identity(model_fingerprint(self.model), self.tokenizer.fingerprint)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What each token writes, for constraints."""
        pad = self.tokenizer.pad_token_id
        return Vocabulary.of(
            self.tokenizer.bytes_by_id(self.model.config.vocab_size),
            end_ids=self.end_ids,
            padding_ids=frozenset() if pad is None else frozenset({pad}),
        )

    @cached_property
    def digester(self) -> Digester:
        """For fast self-conditioning. It reads the whole embedding, so it is made when asked."""
        table = table_of(self.model.model.decoder.embed_tokens)
        return Digester(table, norms_of(table), self.model.compute_dtype)

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self.generation_config.eos_token_ids | self.tokenizer.eos_token_ids

    def encode(self, prompt: Prompt, options: GenerationOptions) -> list[int]:
        """The token ids of a prompt; PromptError or ConfigError before anything is computed."""
        if not isinstance(options, GenerationOptions):
            raise ConfigError(
                f"options are {options!r}", hint="give a GenerationOptions, or leave them out"
            )
        return self.tokenizer.encode_prompt(
            prompt, chat_template=options.chat_template, thinking=options.thinking
        )

    def answer(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        draws: Draws | None,
        *,
        cache: PrefixCache | None = None,
        marks: Iterable[int] = (),
        max_context: int | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of one answer, `Finished` last; see `block_loop`."""
        with turn():
            mx.reset_peak_memory()
            writing = self.begin(
                prompt_ids, options, draws, cache=cache, marks=marks, max_context=max_context
            )
        events = alone(writing.loop, writing.cache)
        try:
            while not writing.is_over:
                asked = time.perf_counter()
                with turn():
                    started = time.perf_counter()
                    token_event = next(events)
                    spent = time.perf_counter() - started
                writing.waited(started - asked)
                event = writing.take(token_event, spent)
                if event is not None:
                    yield event
        finally:
            events.close()
        result = writing.result()
        if not options.shrink_canvas:  # whose steps differ in length
            length = options.canvas_length or self.model.config.canvas_length
            self.pace.learn(result.stats, length)
        yield Finished(result)

    def begin(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        draws: Draws | None,
        *,
        cache: PrefixCache | None = None,
        marks: Iterable[int] = (),
        max_context: int | None = None,
    ) -> Writing:
        """An answer whose loop has yet to take its first step; within a turn, as it may measure."""
        seed = secrets.randbits(32) if options.seed is None else options.seed
        cache = PrefixCache(self.model) if cache is None else cache
        self.check_range(prompt_ids, cache)
        plan = self._plan(options, len(prompt_ids))
        draws = draws or SeededDraws(seed)
        cost = None if options.constraint is None else ConstraintCost()
        return Writing(
            loop=self._loop(prompt_ids, options, plan, draws, cache, marks, max_context, cost),
            cache=cache,
            answer=AnswerStream(self.tokenizer, options.stop, prompt_ids=prompt_ids),
            plan=plan,
            seed=seed,
            max_tokens=options.max_tokens,
            load_seconds=self.load_seconds,
            constraint_cost=cost,
        )

    def check_range(self, prompt_ids: Sequence[int], cache: PrefixCache) -> None:
        """Let the first prompt decide on the compute dtype, where that is still open."""
        if self.range_check is not None and prompt_ids and self.range_check.on_prompt(prompt_ids):
            cache.clear()
            for made_of_weights in "identity", "digester":
                vars(self).pop(made_of_weights, None)

    def _plan(self, options: GenerationOptions, prompt_tokens: int) -> Plan:
        """What "auto" and a deadline come to for this prompt; measures what is not known yet."""
        settings = settings_for(self.generation_config.sampler, options)
        faster = partial(
            left_to_right_is_faster, self.pace, self.model, options, settings, prompt_tokens
        )
        if options.mode == "ar" or options.mode == "auto" and faster():
            return Plan("ar", settings)
        if options.deadline_ms is not None:
            length = options.canvas_length or self.model.config.canvas_length
            step = self.pace.step_seconds(self.model, length, prompt_tokens)
            most = settings.max_denoising_steps
            steps = steps_within(options.deadline_ms / 1000, step, most)
            settings = replace(settings, max_denoising_steps=steps)
        return Plan("diffusion", settings)

    def _loop(
        self,
        prompt_ids: Sequence[int],
        options: GenerationOptions,
        plan: Plan,
        draws: Draws,
        cache: PrefixCache,
        marks: Iterable[int],
        max_context: int | None,
        cost: ConstraintCost | None,
    ) -> Generator[Pass | TokenEvent, Answer, None]:
        """Passes and events of one answer in token ids."""
        ends = self.end_ids
        if plan.mode == "ar":
            return token_loop(
                self.model.config,
                prompt_ids,
                cache,
                draws=draws,
                settings=TokenSettings.from_options(options),
                max_tokens=options.max_tokens,
                eos_token_ids=ends,
                marks=marks,
                max_context=max_context,
            )
        return block_loop(
            self.model.config,
            prompt_ids,
            cache,
            draws=draws,
            settings=plan.settings,
            max_tokens=options.max_tokens,
            eos_token_ids=ends,
            marks=marks,
            max_context=max_context,
            retry_empty=options.retry_empty,
            canvas_length=options.canvas_length,
            shrink_canvas=options.shrink_canvas,
            follow=self._follow(options.constraint, cost),
            digest=self.digester if options.fast_self_conditioning else None,
        )

    def _follow(
        self, constraint: CanvasConstraint | None, cost: ConstraintCost | None
    ) -> Callable[[int], ConstrainedText] | None:
        """What begins the constraint of an answer, given its tokens; None without one."""
        if constraint is None or cost is None:
            return None
        with cost.preparing:
            vocabulary = self.vocabulary
        return partial(follow, constraint, vocabulary, cost=cost)


def result_of(events: Iterator[Event]) -> GenerationResult:
    """What a stream ends with."""
    for event in events:
        if isinstance(event, Finished):
            return event.result
    raise AssertionError("a stream ends with Finished")
