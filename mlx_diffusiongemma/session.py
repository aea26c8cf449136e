"""A conversation that keeps its KV cache between turns, so that a turn reads only what is new.

    history + message --> chat template --> token ids --> what they share with the cache stays
                                                      --> the rest is read --> canvases

A turn that is cancelled or fails leaves the history as it was. Every answer is the one that a cold
`Runtime.stream` of the same messages gives, but for the rounding of reading in other pieces.
"""

import contextlib
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import ConfigError, DGemmaError, PromptError
from mlx_diffusiongemma.events import Event, Finished, GenerationResult
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.prefix_cache import PrefixCache, common_prefix
from mlx_diffusiongemma.prompt_cache import load_prompt_cache, save_prompt_cache
from mlx_diffusiongemma.responder import Prompt, Responder, result_of
from mlx_diffusiongemma.session_memory import SessionMemory
from mlx_diffusiongemma.text import Message
from mlx_diffusiongemma.turns import in_background, turn

_DEFAULTS = GenerationOptions()
_OTHER = "\u241f"  # stands for another message: hardly any begins with it


class Session:
    """A conversation with one model; several of them share it. `Runtime.session` makes one.

    A session answers one message at a time. Use it from any thread.
    """

    def __init__(
        self,
        responder: Responder,
        memory: SessionMemory,
        *,
        max_context: int | None = None,
        rewind_tokens: int | None = None,
    ):
        _check_limit("max_context", max_context, least=1)
        _check_limit("rewind_tokens", rewind_tokens, least=0)
        window = responder.model.config.sliding_window
        self._responder = responder
        self._memory = memory
        self._max_context = max_context
        self._cache = PrefixCache(
            responder.model, window if rewind_tokens is None else rewind_tokens
        )
        self._messages: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said: the messages of all complete turns, answers without thoughts."""
        return self._messages

    @property
    def cached_tokens(self) -> int:
        """How many tokens the cache holds."""
        return len(self._cache.tokens)

    @property
    def memory_bytes(self) -> int:
        """What the cache takes now; `max_context` bounds it."""
        return self._cache.nbytes

    def generate(
        self,
        message: str | Message | Sequence[Message],
        options: GenerationOptions = _DEFAULTS,
        *,
        draws: Draws | None = None,
    ) -> GenerationResult:
        """Answer the next message; see `stream`."""
        return result_of(self.stream(message, options, draws=draws))

    def stream(
        self,
        message: str | Message | Sequence[Message],
        options: GenerationOptions = _DEFAULTS,
        *,
        draws: Draws | None = None,
    ) -> Generator[Event, None, None]:
        """Answer the next message, reporting as it goes.

        Args:
            message: text, the next user message; or one message with its role; or a list of
                messages, which takes the place of everything said so far: for edits, or when the
                caller keeps the history. With `options.chat_template` off, a text is the whole
                prompt, and the history stays out of it.
            options, draws: see `Runtime.stream`.

        Yields:
            The events of `Runtime.stream`. `PromptProcessed` says how much of the prompt was in
            the cache. With `Finished` the message and its answer join the history; closing the
            iterator before that leaves it as it was.

        Raises:
            PromptError: the messages cannot be read, or do not fit into `max_context`.
            GenerationError: the session is answering another message, or the logits are not
                numbers.
        """
        prompt = self._prompt(message, options)
        prompt_ids = self._responder.encode(prompt, options)
        marks = self._marks(prompt, prompt_ids, options)
        events = self._responder.answer(
            prompt_ids,
            options,
            draws,
            cache=self._cache,
            marks=marks,
            max_context=self._max_context,
        )
        return self._turn(prompt, events)

    def astream(
        self,
        message: str | Message | Sequence[Message],
        options: GenerationOptions = _DEFAULTS,
        *,
        draws: Draws | None = None,
    ) -> AsyncGenerator[Event, None]:
        """`stream` for asyncio; see `Runtime.astream`."""
        return in_background(lambda: self.stream(message, options, draws=draws))

    def clear(self) -> None:
        """Free the cache. The history stays, and the next turn reads it again."""
        with self._memory.in_use(self._cache):
            self._cache.clear()

    def save_cache(self, path: str | Path) -> int:
        """Write the cache to a file, for any session with this model, and return its bytes.

        Between the events of a turn it holds what was read so far: right after `PromptProcessed`
        that is the prompt, with the places marked that later prompts may return to.
        """
        with turn():
            return save_prompt_cache(Path(path), self._cache, self._responder.identity)

    def load_cache(self, path: str | Path) -> int:
        """Take the cache from a file, and return how many tokens it holds.

        The history stays as it is. PromptCacheError when the file is damaged, or was made with
        another model, dtype, tokenizer, chat template or version of its layout.
        """
        with self._memory.in_use(self._cache), turn():
            load_prompt_cache(
                Path(path), self._cache, self._responder.identity, self._responder.model
            )
        return self.cached_tokens

    def _turn(self, prompt: Prompt, events: Iterator[Event]) -> Generator[Event, None, None]:
        last: Finished | None = None
        with self._memory.in_use(self._cache):
            try:
                for event in events:
                    if isinstance(event, Finished):
                        last = event
                        break
                    self._memory.make_room()
                    yield event
            except (DGemmaError, GeneratorExit, KeyboardInterrupt):
                raise
            except BaseException:  # arrays that failed to compute are of no use to anyone
                self._cache.clear()
                raise
        assert last is not None
        if not isinstance(prompt, str):
            answer = {"role": "assistant", "content": last.result.text}
            self._messages = (*prompt, answer)
        yield last

    def _prompt(
        self, message: str | Message | Sequence[Message], options: GenerationOptions
    ) -> Prompt:
        if isinstance(message, str):
            if isinstance(options, GenerationOptions) and not options.chat_template:
                return message
            return [*self._messages, {"role": "user", "content": message}]
        if isinstance(message, Mapping):
            return [*self._messages, message]
        return list(message) if isinstance(message, Iterable) else message

    def _marks(
        self, prompt: Prompt, prompt_ids: Sequence[int], options: GenerationOptions
    ) -> list[int]:
        """Where later prompts are likely to part from this one.

        That is where the last message begins, should it be edited, and where the answer begins
        when the template renders it as history: the prompt may end in markers that history lacks.
        """
        if isinstance(prompt, str):
            return [len(prompt_ids)]
        user = {"role": "user", "content": _OTHER}
        marks = []
        for other in (
            [*prompt[:-1], user],
            [*prompt, {"role": "assistant", "content": _OTHER}, user],
        ):
            with contextlib.suppress(PromptError):  # a template may refuse what nobody said
                marks.append(common_prefix(prompt_ids, self._responder.encode(other, options)))
        return marks


def _check_limit(name: str, value: int | None, *, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name} is {value!r}", hint=f"{name} must be an integer of {least} or more"
        )
