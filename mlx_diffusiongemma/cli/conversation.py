"""The history of a chat: a system message and exchanges, as values that never change.

Every edit gives a new `Conversation`, so a cancelled turn leaves the old one as it was.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlx_diffusiongemma.errors import PromptError

_ROLES = ("user", "assistant")


@dataclass(frozen=True)
class Exchange:
    """What the user said and what the model answered, without its thoughts."""

    user: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    """A chat between turns; exchanges are counted from 1, as people see them."""

    system: str | None = None
    exchanges: tuple[Exchange, ...] = ()

    def with_exchange(self, user: str, answer: str) -> "Conversation":
        """This conversation and one more exchange."""
        return replace(self, exchanges=(*self.exchanges, Exchange(user, answer)))

    def before(self, number: int) -> "Conversation":
        """This conversation up to, and without, exchange `number`."""
        if not 1 <= number <= len(self.exchanges):
            raise PromptError(f"there is no exchange {number}", hint=self._numbers())
        return replace(self, exchanges=self.exchanges[: number - 1])

    def last(self) -> Exchange:
        """The latest exchange."""
        if not self.exchanges:
            raise PromptError("nothing has been said yet")
        return self.exchanges[-1]

    def _numbers(self) -> str:
        count = len(self.exchanges)
        return f"/history numbers them, 1 to {count}" if count else "nothing has been said yet"

    def messages(self, user: str | None = None) -> list[dict[str, str]]:
        """The chat as role and content pairs, with a new user message at the end if given."""
        turns = [("system", self.system)] if self.system else []
        for exchange in self.exchanges:
            turns += [("user", exchange.user), ("assistant", exchange.answer)]
        if user is not None:
            turns.append(("user", user))
        return [{"role": role, "content": content} for role, content in turns]

    @classmethod
    def from_messages(cls, messages: object, source: str) -> "Conversation":
        """Read role and content pairs; PromptError names `source` and the first one amiss."""
        if not isinstance(messages, list):
            raise PromptError(f"`{source}` is not a list of messages", hint=_LAYOUT)
        turns = [_role_and_content(index, item, source) for index, item in enumerate(messages, 1)]
        system = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
        for index, (role, _) in enumerate(turns):
            if role != _ROLES[index % 2]:
                wrong = index + 1 + (system is not None)
                raise PromptError(f"`{source}`: message {wrong} is from `{role}`", hint=_LAYOUT)
        if len(turns) % 2:
            raise PromptError(f"`{source}`: the last message has no answer", hint=_LAYOUT)
        contents = [content for _, content in turns]
        pairs = zip(contents[::2], contents[1::2], strict=True)
        return cls(system, tuple(Exchange(user, answer) for user, answer in pairs))

    def save(self, path: Path) -> None:
        """Write the messages as JSON."""
        text = json.dumps(self.messages(), ensure_ascii=False, indent=2)
        path.write_text(text + "\n", encoding="utf-8", errors="replace")

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Read what `save` wrote."""
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise PromptError(f"`{path}` is not JSON", hint=_LAYOUT) from None
        return cls.from_messages(messages, str(path))


_LAYOUT = 'wanted: [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]'


def _role_and_content(index: int, message: object, source: str) -> tuple[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise PromptError(f"`{source}`: message {index} lacks a role or a text", hint=_LAYOUT)
    return role, content


def numbered(conversation: Conversation) -> Sequence[tuple[str, str]]:
    """The history as (label, text) pairs to show: system, then each exchange with its number."""
    lines = [("system", conversation.system)] if conversation.system else []
    for number, exchange in enumerate(conversation.exchanges, 1):
        lines += [(f"{number} you", exchange.user), (f"{number} model", exchange.answer)]
    return lines
