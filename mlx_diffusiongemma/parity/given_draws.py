"""The draws of a recorded generation, found by canvas and step, for whoever replays it.

A replay that takes more steps, or another number of canvases, must not shift the draws of those
that follow: each belongs to its place. Beyond what was recorded there is none.
"""

import numpy as np

from mlx_diffusiongemma.parity.trace import Arrays


class GivenDraws:
    """Rows of "initial", "candidates" and "renoise"; call `next_canvas` and `next_step` first."""

    def __init__(self, arrays: Arrays):
        self._arrays = arrays
        self._starts = np.cumsum([0, *arrays.get("steps", ())])
        self._canvas = -1
        self._step = -1

    def next_canvas(self) -> None:
        """A canvas begins."""
        self._canvas, self._step = self._canvas + 1, -1

    def next_step(self) -> None:
        """A step over the present canvas begins."""
        self._step += 1

    def row(self, name: str) -> np.ndarray | None:
        """int32 [L], what was drawn at this place; None where the recording has nothing."""
        if "steps" not in self._arrays or self._canvas + 1 >= len(self._starts):
            return None
        if name == "initial":
            index = self._canvas
        else:
            index = int(self._starts[self._canvas]) + self._step
            if index >= self._starts[self._canvas + 1]:
                return None
        found: np.ndarray = self._arrays[name][index]
        return found
