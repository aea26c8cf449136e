"""4x4 Sudoku: all 288 grids, the 58 that training never sees, and puzzles with one solution.

A grid is 16 digits row by row, a puzzle the same with `.` for an empty cell.
"""

import itertools
import random
from collections.abc import Sequence

HELD_OUT_COUNT = 58
FEWEST_CLUES, MOST_CLUES = 5, 11
HEADINGS = ("Solve this sudoku:", "Solve this sudoku:", "Sudoku:", "Please solve:")


def all_grids() -> list[str]:
    """Every 4x4 grid whose rows, columns and 2x2 boxes hold each digit once, sorted."""
    rows = ["".join(row) for row in itertools.permutations("1234")]
    pairs = [
        (a, b)
        for a in rows
        for b in rows
        if not set(a[:2]) & set(b[:2]) and not set(a[2:]) & set(b[2:])
    ]
    halves = [a + b for a, b in pairs]
    return sorted(
        top + low
        for top in halves
        for low in halves
        if all(len({top[i], top[i + 4], low[i], low[i + 4]}) == 4 for i in range(4))
    )


GRIDS = all_grids()
HELD_OUT_GRIDS = sorted(random.Random("held out").sample(GRIDS, HELD_OUT_COUNT))
TRAINING_GRIDS = sorted(set(GRIDS) - set(HELD_OUT_GRIDS))

# One bit per grid: which grids have this digit in this cell.
_WITH_DIGIT = [
    {digit: sum(1 << n for n, grid in enumerate(GRIDS) if grid[cell] == digit) for digit in "1234"}
    for cell in range(16)
]


def solutions(puzzle: str) -> int:
    """How many grids agree with the clues of `puzzle`."""
    agreeing = (1 << len(GRIDS)) - 1
    for cell, digit in enumerate(puzzle):
        if digit != ".":
            agreeing &= _WITH_DIGIT[cell][digit]
    return agreeing.bit_count()


def make_puzzle(rng: random.Random, grids: Sequence[str] = TRAINING_GRIDS) -> tuple[str, str]:
    """A puzzle with exactly one solution, and that solution.

    Cells are emptied in random order while the solution stays unique (among all 288 grids), down
    to a number of clues drawn between `FEWEST_CLUES` and `MOST_CLUES`; it may end a little above.
    """
    grid = rng.choice(grids)
    wanted = rng.randint(FEWEST_CLUES, MOST_CLUES)
    cells = list(grid)
    clues = 16
    for cell in rng.sample(range(16), 16):
        if clues == wanted:
            break
        cells[cell] = "."
        if solutions("".join(cells)) == 1:
            clues -= 1
        else:
            cells[cell] = grid[cell]
    return "".join(cells), grid


def as_rows(cells: str) -> str:
    """Four lines of four cells."""
    return "\n".join(cells[start : start + 4] for start in range(0, 16, 4))


def make_prompt(rng: random.Random, puzzle: str) -> str:
    """The puzzle as a user would ask for it."""
    return f"{rng.choice(HEADINGS)}\n{as_rows(puzzle)}"
