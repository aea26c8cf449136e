"""What one denoising step looks like, before anything is drawn.

    DenoisingStep --> CanvasReader --> Frame --> styled text (terminal) or plain text (log)

Three classes of token are told apart without colour: settled tokens are plain, changing ones are
underlined (bracketed in plain text), noise is dots as wide as the token would be.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

from mlx_diffusiongemma.events import BlockCommitted, DenoisingStep

CellClass = Literal["settled", "changing", "noise"]

_STYLES = {"settled": "", "changing": "yellow underline", "noise": "dim"}
_NEWLINE = "↵"
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160))}
_CONTROLS |= {ord("\n"): "\n", ord("\t"): " ", ord("\r"): ""}


def canvas_cells(
    previous_argmax: Sequence[int] | None, argmax: Sequence[int], accepted: Sequence[bool]
) -> list[CellClass]:
    """Class of each position: noise when it is not accepted now, changing when it is accepted
    with another token than in the step before (or there was none), settled otherwise."""
    before = [None] * len(argmax) if previous_argmax is None else previous_argmax
    cells: list[CellClass] = []
    for old, new, kept in zip(before, argmax, accepted, strict=True):
        cells.append("noise" if not kept else "settled" if old == new else "changing")
    return cells


@dataclass(frozen=True)
class Frame:
    """One denoising step, ready to draw.

    Attributes:
        canvas, step, max_steps: where we are, counted from 1.
        cells: (class, visible text) of each position.
        accepted: share of accepted positions, 0 to 1.
        entropy: mean over the canvas, nats.
        tokens_per_second: committed and settled tokens by the time since the prompt.
    """

    canvas: int
    step: int
    max_steps: int
    cells: tuple[tuple[CellClass, str], ...]
    accepted: float
    entropy: float
    tokens_per_second: float


class CanvasReader:
    """Turns denoising steps into frames; remembers the step before and the tokens so far."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        end_tokens: Collection[int],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._decode = decode
        self._end_tokens = end_tokens
        self._clock = clock
        self._texts: dict[int, str] = {}
        self._previous: tuple[int, list[int]] | None = None
        self._committed = 0
        self._started = clock()

    def start(self) -> None:
        """The prompt has been read: count time from here."""
        self._started = self._clock()

    def read(self, event: DenoisingStep) -> Frame:
        """The frame of one step of the first sequence of the batch."""
        argmax = _row(event.argmax_canvas.tolist())
        accepted = _row(event.accepted.tolist())
        same_canvas = self._previous is not None and self._previous[0] == event.canvas_index
        before = self._previous[1][: len(argmax)] if self._previous and same_canvas else None
        classes = canvas_cells(before, argmax, accepted)  # the canvas may have been cut since
        self._previous = (event.canvas_index, argmax)
        tokens = self._committed + self._settled_tokens(argmax, classes)
        entropy = _row(event.entropy.tolist())
        return Frame(
            canvas=event.canvas_index + 1,
            step=event.step + 1,
            max_steps=event.max_denoising_steps,
            cells=tuple(zip(classes, map(self._text, argmax), strict=True)),
            accepted=sum(accepted) / len(accepted),
            entropy=sum(entropy) / len(entropy),
            tokens_per_second=tokens / max(self._clock() - self._started, 1e-9),
        )

    def commit(self, event: BlockCommitted) -> None:
        """A canvas is finished: its tokens count as written."""
        self._committed += len(event.token_ids)

    def _settled_tokens(self, argmax: list[int], classes: list[CellClass]) -> int:
        """Settled positions before the first settled end token."""
        count = 0
        for token, cell in zip(argmax, classes, strict=True):
            if cell == "settled":
                if token in self._end_tokens:
                    break
                count += 1
        return count

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._decode([token]).translate(_CONTROLS)
        return self._texts[token]


def _row(batch: object) -> list:
    assert isinstance(batch, list)
    return batch[0]


def styled(frame: Frame) -> Text:
    """The canvas for a terminal."""
    text = Text()
    for cell, token in frame.cells:
        space, word = _shown(cell, token)
        text.append(space)
        text.append(word, _STYLES[cell])
    return text


def plain(frame: Frame) -> str:
    """The canvas on one line without any styles, for a log."""
    shown = []
    for cell, token in frame.cells:
        space, word = _shown(cell, token.replace("\n", _NEWLINE))
        shown.append(space + (f"[{word}]" if cell == "changing" and word else word))
    return "".join(shown)


def progress(frame: Frame, width: int) -> str:
    """Where the step is, in as few lines of at most `width` columns as its parts need."""
    parts = [
        f"canvas {frame.canvas}",
        f"step {frame.step}/{frame.max_steps}",
        f"accepted {frame.accepted:.0%}",
        f"entropy {frame.entropy:.3f}",
        f"{frame.tokens_per_second:.0f} tokens/s",
    ]
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _shown(cell: CellClass, token: str) -> tuple[str, str]:
    """The space before a token's word, which is never marked, and what stands for the word."""
    word = token.lstrip(" ")
    space = token[: len(token) - len(word)]
    if cell == "settled":
        return space, word
    word = word.replace("\n", _NEWLINE)
    return space, word if cell == "changing" else "·" * max(cell_len(word), 1)
