"""The loop of a chat: read a line, obey a command or take a turn, until the input ends.

A turn that fails or is cancelled leaves the conversation as it was before it. Whatever the history
has in common with what was read last is not read again, also after an edit.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mlx_diffusiongemma.cli import render
from mlx_diffusiongemma.cli.arguments import check_text
from mlx_diffusiongemma.cli.console import describe, note, print_error, say
from mlx_diffusiongemma.cli.conversation import Conversation, numbered
from mlx_diffusiongemma.cli.prompt_cache import PromptCacheFile
from mlx_diffusiongemma.errors import DGemmaError, PromptError
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.runtime import Runtime

_SEEDS = 2**64


@dataclass(frozen=True)
class Command:
    """A line that starts with `/`: how it is written, what it does, who does it."""

    usage: str
    help: str
    run: Callable[["Chat", str], None]


class Leave(Exception):  # noqa: N818 - not an error: it ends the loop
    """The user wants to go."""


class Chat:
    """A conversation in progress."""

    def __init__(
        self,
        runtime: Runtime,
        options: GenerationOptions,
        conversation: Conversation,
        *,
        prompt_cache_file: Path | None = None,
        watch: bool = False,
        stats: bool = False,
    ):
        self.runtime = runtime
        self.options = options
        self.conversation = conversation
        self._session = runtime.session()
        self._file = (
            None if prompt_cache_file is None else PromptCacheFile(prompt_cache_file, self._session)
        )
        self._watch = watch
        self._stats = stats

    def run(self) -> None:
        """Read lines until the input ends, /quit, or Ctrl-C twice at the prompt."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - input() edits lines once it is imported
            say(("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves", "dim"))
        interrupted = False
        while True:
            try:
                line = read_line()
            except KeyboardInterrupt:
                say()
                if interrupted:
                    return
                say(("Ctrl-C again, Ctrl-D or /quit leaves", "dim"))
                interrupted = True
                continue
            if line is None:
                return
            interrupted = False
            try:
                self.take(line)
            except Leave:
                return

    def take(self, line: str) -> None:
        """Obey one line; what goes wrong is said and the chat goes on."""
        try:
            check_text("this line", line)
            if line.startswith("/"):
                name, _, argument = line[1:].partition(" ")
                self._command(name)(self, argument.strip())
            elif line.strip():
                self.turn(self.conversation, line.strip())
        except BrokenPipeError:
            raise
        except (DGemmaError, OSError, MemoryError) as error:
            print_error(*describe(error))
        except KeyboardInterrupt:
            say()
            note("cancelled; the history is as it was")

    def turn(self, before: Conversation, user: str) -> None:
        """Answer `user` after `before`; only a complete answer joins the history."""
        events = self._session.stream(before.messages(user), self.options)
        result = render.show_answer(
            events if self._file is None else self._file.follow(events),
            self.runtime.tokenizer,
            watch=self._watch,
            stats=self._stats,
            stop=self.options.stop,
        )
        self.conversation = before.with_exchange(user, result.text)

    def _command(self, name: str) -> Callable[["Chat", str], None]:
        if name not in COMMANDS:
            raise PromptError(
                f"there is no command `/{name}`",
                hint="/help lists them; a message may start with a space, then /",
            )
        return COMMANDS[name].run


def read_line() -> str | None:
    """One line, or several joined where one ends in a backslash; None when the input ends."""
    lines: list[str] = []
    while True:
        line = _read("> " if not lines else ". ")
        if line is None:
            return "\n".join(lines) if lines else None
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _read(prompt: str) -> str | None:
    """One line with editing at a terminal; the prompt never reaches a redirected output."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            return input(prompt)
        if sys.stdin.isatty():
            say(prompt, end="")
        line = sys.stdin.readline()
    except EOFError:
        say()
        return None
    return line.removesuffix("\n") if line else None


def _help(chat: Chat, argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        say((f"{command.usage:{width}}", "bold"), f"  {command.help}")
    say("A line that ends with \\ goes on in the next one.")


def _system(chat: Chat, argument: str) -> None:
    chat.conversation = replace(chat.conversation, system=argument or None)
    note("system message set" if argument else "no system message")


def _history(chat: Chat, argument: str) -> None:
    lines = numbered(chat.conversation)
    if not lines:
        note("nothing has been said yet")
    for label, text in lines:
        say((label, "bold"), f": {text}")


def _undo(chat: Chat, argument: str) -> None:
    last = chat.conversation.last()
    chat.conversation = chat.conversation.before(len(chat.conversation.exchanges))
    note(f"dropped: {last.user}")


def _edit(chat: Chat, argument: str) -> None:
    first, _, rest = argument.partition(" ")
    number = int(first) if first.isdecimal() else len(chat.conversation.exchanges)
    text = rest.strip() if first.isdecimal() else argument
    if not text:
        raise PromptError("/edit has no text", hint=COMMANDS["edit"].usage)
    chat.conversation.last()
    chat.turn(chat.conversation.before(number), text)


def _retry(chat: Chat, argument: str) -> None:
    last = chat.conversation.last()
    if chat.options.seed is not None:  # the same seed would give the same answer
        chat.options = replace(chat.options, seed=(chat.options.seed + 1) % _SEEDS)
    chat.turn(chat.conversation.before(len(chat.conversation.exchanges)), last.user)


def _reset(chat: Chat, argument: str) -> None:
    chat.conversation = replace(chat.conversation, exchanges=())
    note("the history is empty; the system message stays")


def _thinking(chat: Chat, argument: str) -> None:
    if argument not in ("on", "off"):
        raise PromptError(f"/thinking takes on or off, not `{argument}`")
    chat.options = replace(chat.options, thinking=argument == "on")
    note(f"thinking is {argument}")


def _steps(chat: Chat, argument: str) -> None:
    if not argument.isdecimal() or int(argument) < 1:
        raise PromptError(f"/steps takes a whole number of 1 or more, not `{argument}`")
    chat.options = replace(chat.options, max_denoising_steps=int(argument))
    note(f"at most {argument} denoising steps for one canvas")


def _save(chat: Chat, argument: str) -> None:
    path = _path(argument)
    chat.conversation.save(path)
    note(f"{_count(chat.conversation)} written to `{path}`")


def _load(chat: Chat, argument: str) -> None:
    path = _path(argument)
    chat.conversation = Conversation.load(path)
    note(f"{_count(chat.conversation)} read from `{path}`")


def _count(conversation: Conversation) -> str:
    count = len(conversation.exchanges)
    return f"{count} exchange" + "s" * (count != 1)


def _path(argument: str) -> Path:
    if not argument:
        raise PromptError("which file?", hint="/save FILE and /load FILE")
    return Path(argument).expanduser()


def _quit(chat: Chat, argument: str) -> None:
    raise Leave


COMMANDS = {
    "help": Command("/help", "show this list", _help),
    "system": Command("/system TEXT", "set the system message; without TEXT, remove it", _system),
    "history": Command("/history", "show what was said, numbered", _history),
    "undo": Command("/undo", "drop the last exchange", _undo),
    "edit": Command("/edit [N] TEXT", "replace message N (the last) and answer it again", _edit),
    "retry": Command("/retry", "answer the last message again", _retry),
    "reset": Command("/reset", "forget what was said", _reset),
    "thinking": Command("/thinking on|off", "let the model think first, or not", _thinking),
    "steps": Command("/steps N", "most denoising steps for one canvas", _steps),
    "save": Command("/save FILE", "write the history as JSON messages", _save),
    "load": Command("/load FILE", "read a history", _load),
    "quit": Command("/quit", "leave (also Ctrl-D)", _quit),
}
