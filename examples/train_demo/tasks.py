"""All tasks of the demo under one roof: draw an example by name, and judge a reply.

An example is a conversation that ends with the user and the answer that should follow.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import conversations
import stories
import sudoku
import talk
from conversations import Messages


@dataclass(frozen=True)
class Example:
    """One conversation and the answer to learn; `thinking` switches the thought channel on."""

    task: str
    messages: Messages
    answer: str
    thinking: bool = False

    @property
    def request(self) -> str:
        """The user's last message."""
        return self.messages[-1]["content"]

    def is_right(self, reply: str) -> bool:
        """Judge a reply: by rule where many replies are right, else by equality."""
        if self.task == "story":
            return stories.is_right(self.request, reply)
        if self.request.startswith("Fill the gap"):
            return talk.gap_is_filled(self.request, reply)
        return reply == self.answer


def _single(
    task: str, make: Callable[[random.Random], tuple[str, str]]
) -> Callable[[random.Random], Example]:
    def draw(rng: random.Random) -> Example:
        request, answer = make(rng)
        return Example(task, [conversations.user(request)], answer)

    return draw


def _conversation(
    task: str, make: Callable[[random.Random], tuple[Messages, str]], *, thinking: bool = False
) -> Callable[[random.Random], Example]:
    def draw(rng: random.Random) -> Example:
        messages, answer = make(rng)
        return Example(task, messages, answer, thinking)

    return draw


def held_out_sudoku(rng: random.Random) -> Example:
    """A puzzle of a grid that training never sees: for evaluation only."""
    puzzle, grid = sudoku.make_puzzle(rng, sudoku.HELD_OUT_GRIDS)
    return Example(
        "sudoku", [conversations.user(sudoku.make_prompt(rng, puzzle))], sudoku.as_rows(grid)
    )


def _story(rng: random.Random) -> Example:
    """A story, sometimes after a greeting or under a neutral system prompt."""
    request, answer = stories.make_story(rng)
    messages = [conversations.user(request)]
    chance = rng.random()
    if chance < 0.1:
        messages.insert(0, conversations.system(rng.choice(conversations.NEUTRAL_SYSTEM)))
    elif chance < 0.2:
        before, reply = talk.SMALL_TALK[0]
        messages = [conversations.user(rng.choice(before)), conversations.model(reply), *messages]
    return Example("story", messages, answer)


TASKS: dict[str, Callable[[random.Random], Example]] = {
    "sudoku": _single("sudoku", conversations.sudoku_task),
    "story": _story,
    **{task: _single(task, make) for task, make in talk.SHORT.items()},
    "system": _conversation("system", conversations.with_system),
    "turns": _conversation("turns", conversations.several_turns),
    "thinking": _conversation("thinking", conversations.thinking, thinking=True),
}
