"""The tokens of an answer -> visible text, thought and tool calls, while canvases arrive.

    token ids --> markers, by id --> UTF-8 --> name of a channel --> thought
                        |                                       --> stop strings --> text
                        +--> tool calls

Text comes out only when it is certain: half a character, the name of a channel and whatever
could still become a stop string wait for the tokens after them. How the tokens are cut into
canvases never changes the result.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_diffusiongemma.text import (
    CHANNEL_END,
    CHANNEL_START,
    MARKERS,
    TOOL_CALL_START,
    TURN_END,
    TURN_START,
    Tokenizer,
)

_THOUGHT = "thought"
# Names that a channel or a turn opens with, on a line of their own, and that are not its text.
_CHANNEL_NAMES = (_THOUGHT, "final", "content")
_TURN_NAMES = ("model", "user", "system", "tool")


@dataclass(frozen=True)
class TextDelta:
    """What became certain with the tokens just added.

    Attributes:
        text: more of the visible answer.
        thought: more of the thought channel.
        stopped: a stop string has ended the answer; nothing follows.
    """

    text: str
    thought: str
    stopped: bool


class _StopStrings:
    """Lets text pass up to the first stop string to be complete, and none of that string."""

    def __init__(self, stop: Sequence[str]):
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.stopped = False

    def add(self, new: str) -> str:
        """The text that is certain now."""
        held, self._held = self._held + new, ""
        found = [(at + len(stop), at) for stop in self._stop if (at := held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return held[: min(found)[1]]
        waiting = next(
            (n for n in range(min(self._longest - 1, len(held)), 0, -1) if self._begins(held[-n:])),
            0,
        )
        certain, self._held = held[: len(held) - waiting], held[len(held) - waiting :]
        return certain

    def finish(self) -> str:
        """The text that waits for a stop string that does not come any more."""
        held, self._held = self._held, ""
        return held

    def _begins(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stop)


class AnswerStream:
    """Reads one answer, token by token, without its end token.

    - A thought channel (`<|channel>thought`, a line break, ..., `<channel|>`) is the thought; one
      that the budget cuts is a thought up to its end. Other channels are part of the answer;
      a name on a line of its own is dropped if it is `final` or `content`.
    - A tool call (`<|tool_call>` ... `<tool_call|>`) is kept as the model wrote it, `<|"|>` and
      other special tokens included. A call that is not closed ends at the next marker or at the
      end of the answer and is kept as far as it goes.
    - Other special tokens are dropped and all other words kept, those of a tool response too.
    - Stop strings are looked for in the visible text alone, as one text, whatever stands between.

    The prompt's tokens are needed only when it may end within a channel; the answer then goes on
    from there.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, prompt_ids: Sequence[int] = ()
    ):
        self._tokenizer = tokenizer
        self._markers = {tokenizer.id_of(marker): marker for marker in MARKERS}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._thinking = False
        self._head: str | None = None  # start of a channel or turn that may still be its name
        self._names: tuple[str, ...] = ()
        self._call: list[str] | None = None
        self._begin(())
        for token_id in prompt_ids:
            self._take(token_id)
        self._begin(stop)

    def _begin(self, stop: Sequence[str]) -> None:
        self._utf8.reset()
        self._stop = _StopStrings(stop)
        self._text: list[str] = []
        self._thought: list[str] = []
        self._tool_calls: list[str] = []
        self._call = None if self._call is None else []
        self._token_count = 0

    @property
    def text(self) -> str:
        """The visible answer so far."""
        return "".join(self._text)

    @property
    def thought(self) -> str:
        """The thought so far."""
        return "".join(self._thought)

    @property
    def tool_calls(self) -> tuple[str, ...]:
        """What stands between the markers of each tool call so far."""
        return tuple(self._tool_calls)

    @property
    def token_count(self) -> int:
        """How many tokens were read; the last is the one that completed a stop string, if any."""
        return self._token_count

    def add(self, token_ids: Sequence[int]) -> TextDelta:
        """Read more tokens. After a stop string they are ignored."""
        texts, thoughts = len(self._text), len(self._thought)
        for token_id in token_ids:
            if self._stop.stopped:
                break
            self._token_count += 1
            self._take(token_id)
        return self._delta(texts, thoughts)

    def finish(self) -> TextDelta:
        """End the answer: nothing waits any longer."""
        texts, thoughts = len(self._text), len(self._thought)
        if not self._stop.stopped:
            self._end_section()
            self._text.append(self._stop.finish())
        return self._delta(texts, thoughts)

    def _delta(self, texts: int, thoughts: int) -> TextDelta:
        return TextDelta(
            text="".join(self._text[texts:]),
            thought="".join(self._thought[thoughts:]),
            stopped=self._stop.stopped,
        )

    def _take(self, token_id: int) -> None:
        marker = self._markers.get(token_id)
        if marker is not None:
            self._end_section()
            self._enter(marker)
        elif self._call is not None or token_id not in self._tokenizer.special_token_ids:
            self._write(self._utf8.decode(self._tokenizer.bytes_of(token_id)))

    def _enter(self, marker: str) -> None:
        if marker == TOOL_CALL_START:
            self._call = []
        elif marker in (CHANNEL_START, TURN_START):
            self._head = ""
            self._names = _CHANNEL_NAMES if marker == CHANNEL_START else _TURN_NAMES
        elif marker in (CHANNEL_END, TURN_END):
            self._thinking = False

    def _end_section(self) -> None:
        """Write what waited for more tokens to where it belongs, and close an open tool call."""
        self._write(self._utf8.decode(b"", final=True))
        if self._head is not None:
            self._settle(self._head)
        if self._call is not None:
            self._tool_calls.append("".join(self._call))
            self._call = None

    def _write(self, new: str) -> None:
        if not new:
            return
        if self._call is not None:
            self._call.append(new)
        elif self._head is not None:
            self._head += new
            if not any(f"{name}\n".startswith(self._head) for name in self._names):
                self._settle(self._head)
        elif self._thinking:
            self._thought.append(new)
        else:
            self._text.append(self._stop.add(new))

    def _settle(self, head: str) -> None:
        """Decide by its name what an opened channel is; what is no name is its first text."""
        self._head = None
        name, _, rest = head.partition("\n")
        is_channel = self._names is _CHANNEL_NAMES
        self._thinking = is_channel and re.match(rf"{_THOUGHT}\b", head) is not None
        self._write(rest if name in self._names else head)
