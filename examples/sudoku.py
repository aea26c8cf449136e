"""Solve a 4x4 sudoku whose clues are pinned: the model fills the gaps and cannot touch the clues.

python examples/sudoku.py [PUZZLE] [MODEL]      a puzzle is 16 cells row by row, `.` is empty
"""

import sys
from itertools import product

from mlx_diffusiongemma import CanvasConstraint, GenerationOptions, load

puzzle = sys.argv[1] if len(sys.argv) > 1 else "1..4..1.2....1.."
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")


def rows(cells: str) -> str:
    """Four lines of four cells."""
    return "\n".join(cells[start : start + 4] for start in range(0, 16, 4))


def is_solved(grid: str) -> bool:
    """Whether every row, column and box holds 1 to 4."""
    lines = grid.split("\n")
    boxes = [
        "".join(lines[r + i][c + j] for i in (0, 1) for j in (0, 1))
        for r, c in product((0, 2), (0, 2))
    ]
    return all(sorted(part) == list("1234") for part in [*lines, *zip(*lines, strict=True), *boxes])


pinned = CanvasConstraint.regex(rows(puzzle).replace(".", "[1-4]"))
options = GenerationOptions(seed=1, max_tokens=40, constraint=pinned)
result = runtime.generate(f"Solve this sudoku:\n{rows(puzzle)}", options)
for asked, answered in zip(rows(puzzle).split("\n"), result.text.split("\n"), strict=True):
    print(" ".join(asked), "  -->  ", " ".join(answered))
print(
    "solved" if is_solved(result.text) else "not solved",
    "in",
    result.stats.denoising_steps[0],
    "steps",
)
