"""Small tasks with answers that a rule can check: what the demo model was trained to do.

The 4x4 Sudoku puzzles are of grids that the demo model never saw in training.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlx_diffusiongemma.bench import stories

_CLUES = (5, 11)
_HELD_OUT_GRIDS = 58
_SUMS = (
    "What is {} + {}?",
    "{} + {}",
    "{} + {} =",
    "Add {} and {}.",
    "{}+{}",
    "What is {} plus {}?",
)


@dataclass(frozen=True)
class Example:
    """One request, and its only right answer or the rule that knows the right ones."""

    prompt: str
    answer: str = ""
    rule: Callable[[str, str], bool] | None = None

    def is_right(self, reply: str) -> bool:
        """Whether a reply is right, but for space around it."""
        if self.rule is not None:
            return self.rule(self.prompt, reply)
        return reply.strip() == self.answer


@dataclass(frozen=True)
class Task:
    """Where examples come from, and how many tokens leave room for any right answer."""

    draw: Callable[[random.Random], Example]
    max_tokens: int


def all_grids() -> list[str]:
    """Every 4x4 grid, row by row, whose rows, columns and 2x2 boxes hold each digit; sorted."""
    rows = ["".join(row) for row in itertools.permutations("1234")]
    halves = [
        a + b for a in rows for b in rows if len({*a[:2], *b[:2]}) == len({*a[2:], *b[2:]}) == 4
    ]
    grids = (top + low for top in halves for low in halves)
    return sorted(grid for grid in grids if all(len(set(grid[i::4])) == 4 for i in range(4)))


_GRIDS = all_grids()
HELD_OUT_GRIDS = sorted(random.Random("held out").sample(_GRIDS, _HELD_OUT_GRIDS))


def solutions(puzzle: str) -> list[str]:
    """The grids that agree with the clues of a puzzle; `.` is an empty cell."""
    clues = [(cell, digit) for cell, digit in enumerate(puzzle) if digit != "."]
    return [grid for grid in _GRIDS if all(grid[cell] == digit for cell, digit in clues)]


def sudoku(rng: random.Random) -> Example:
    """A puzzle with exactly one solution: cells are emptied in random order while it stays one."""
    grid = rng.choice(HELD_OUT_GRIDS)
    wanted = rng.randint(*_CLUES)
    cells, clues = list(grid), len(grid)
    for cell in rng.sample(range(len(grid)), len(grid)):
        if clues == wanted:
            break
        cells[cell] = "."
        if len(solutions("".join(cells))) == 1:
            clues -= 1
        else:
            cells[cell] = grid[cell]
    return Example(f"Solve this sudoku:\n{_as_rows(''.join(cells))}", _as_rows(grid))


def add(rng: random.Random) -> Example:
    """A sum of two numbers from 0 to 20."""
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    return Example(rng.choice(_SUMS).format(a, b), f"{a} + {b} = {a + b}")


def story(rng: random.Random) -> Example:
    """A story of three canvases; many are right."""
    return Example(stories.request(rng), rule=stories.is_right)


TASKS: Mapping[str, Task] = {
    "sudoku": Task(sudoku, max_tokens=64),
    "add": Task(add, max_tokens=64),
    "story": Task(story, max_tokens=128),
}


def draw(task: str, count: int, seed: int) -> list[Example]:
    """`count` examples of a task; the same ones for the same seed."""
    rng = random.Random(f"{task} {seed}")
    return [TASKS[task].draw(rng) for _ in range(count)]


def _as_rows(cells: str) -> str:
    return "\n".join(cells[start : start + 4] for start in range(0, 16, 4))
