"""What a soak asks for: short and long answers, watched or not, cancelled, failing, in sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_STORY = "Tell me a story about a fox named Mia and a red ball."
_SUDOKU = "Solve this sudoku:\n1..4\n..1.\n...2\n2..."
_TOO_LONG = "word " * 400  # more tokens than a session for 300 takes


@dataclass(frozen=True)
class Shape:
    """One kind of request.

    Attributes:
        name: for people.
        kind: which function of the worker answers it.
        prompts: one, or the turns of a session.
        options: fields of `GenerationOptions`; each shape has its own seed.
        watch: decode every step, as the live view does.
        events: of kind "cancel", how many to take before the iterator is closed.
    """

    name: str
    kind: str
    prompts: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    watch: bool = False
    events: int = 0


_LONG = {"max_tokens": 128}
_SHORT = {"max_tokens": 64}
MIX = (
    Shape("sum", "answer", ("2 + 2 =",), _SHORT),
    Shape("sum, watched", "answer", ("3 + 4 =",), _SHORT, watch=True),
    Shape("story", "answer", (_STORY,), _LONG),
    Shape("sum, left to right", "answer", ("5 + 6 =",), _SHORT | {"mode": "ar"}),
    Shape("cancelled in the first canvas", "cancel", (_STORY,), _LONG, events=3),
    Shape("session of two turns", "session", ("2 + 2 =", "Who are you?"), _SHORT),
    Shape("Sudoku", "answer", (_SUDOKU,), _SHORT),
    Shape("too long a prompt", "bounded", (_TOO_LONG,), _SHORT),
    Shape("story, watched", "answer", (_STORY,), _LONG, watch=True),
    Shape("kept session", "kept", ("Who are you?",), _SHORT),
    Shape("two canvases", "answer", (_STORY,), _LONG | {"max_tokens": 40}),
    Shape("from another thread", "astream", ("7 + 1 =",), _SHORT),
    Shape("left to right, drawn", "answer", ("Hello!",), _SHORT | {"mode": "ar", "temperature": 1}),
    Shape("cancelled in the second canvas", "cancel", (_STORY,), _LONG, watch=True, events=14),
    Shape("Sudoku, fast", "answer", (_SUDOKU,), _SHORT | {"preset": "fast"}),
    Shape("four canvases", "answer", (_STORY,), _LONG | {"canvas_length": 24}),
    Shape("a setting that is refused", "answer", ("2 + 2 =",), {"max_tokens": 0}),
    Shape("kept session again", "kept", ("2 + 3 =",), _SHORT),
    Shape("short canvas", "answer", ("9 + 9 =",), _SHORT | {"canvas_length": 16}),
    Shape("cut canvas", "answer", ("1 + 2 =",), _SHORT | {"shrink_canvas": True}),
    Shape("left to right, cancelled", "cancel", (_STORY,), _LONG | {"mode": "ar"}, events=9),
    Shape("thinking", "answer", ("4 + 8 =",), _SHORT | {"thinking": True}),
    Shape("stop string", "answer", (_STORY,), _LONG | {"stop": ("One day",)}),
    Shape("a failure amid the steps", "failing", (_STORY,), _LONG, events=4),
    Shape("one step", "answer", ("6 + 3 =",), _SHORT | {"max_denoising_steps": 1}),
)
