"""What a person or a program gets to see of an answer: text, notes, statistics, JSON."""

import contextlib
import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from mlx_diffusiongemma.cli.canvas import CanvasReader
from mlx_diffusiongemma.cli.console import (
    is_live,
    note,
    say,
    stderr,
    typing_hidden,
    waiting,
    write_stdout,
)
from mlx_diffusiongemma.cli.watch import Watch, open_watch
from mlx_diffusiongemma.events import (
    BlockCommitted,
    DenoisingStep,
    Event,
    Finished,
    GenerationResult,
    GenerationStats,
    PromptProcessed,
    TokenWritten,
)
from mlx_diffusiongemma.hub_cache import format_size
from mlx_diffusiongemma.text import Tokenizer
from mlx_diffusiongemma.version import __version__

_SHOWN_CANVASES = 8

Channel = Literal["thought", "text"]


class Transcript:
    """Writes the answer to standard output and, dimmed, the thought to standard error.

    With `hold_partial_lines` a line is kept in `held` until it is complete, for as long as it
    would share the terminal with a region that redraws itself. What is written is the same.
    """

    def __init__(self, *, hold_partial_lines: bool = False):
        self._hold = hold_partial_lines
        self._channel: Channel | None = None
        self._mid_line = False
        self.held = ""

    def add(self, text: str, thought: str) -> None:
        """Write what has become certain; a thought comes before the answer it leads to."""
        self._write("thought", thought)
        self._write("text", text)

    def finish(self) -> None:
        """Write what was held and end the line; an answer of nothing is an empty line."""
        self.abandon()
        if self._channel != "text":
            write_stdout("\n")

    def abandon(self) -> None:
        """Write what was held and end the line, if one was begun."""
        self._release()
        if self._mid_line and self._channel == "text":
            write_stdout("\n")
        elif self._mid_line:
            stderr.print()
        self._mid_line = False

    def _write(self, channel: Channel, piece: str) -> None:
        if not piece:
            return
        if self._channel not in (None, channel):
            self._release()
            self._break_line()
        self._channel = channel
        piece = self.held + piece
        self.held = ""
        if self._hold and (channel == "thought" or sys.stdout.isatty()):
            whole, newline, self.held = piece.rpartition("\n")
            piece = whole + newline
        self._emit(piece)

    def _release(self) -> None:
        piece, self.held = self.held, ""
        self._emit(piece)

    def _emit(self, piece: str) -> None:
        if not piece:
            return
        if self._channel == "text":
            write_stdout(piece)
        else:
            stderr.print(Text(piece, "dim"), end="", soft_wrap=True)
        self._mid_line = not piece.endswith("\n")

    def _break_line(self) -> None:
        """Begin a new line for the other channel, without a trace in the answer."""
        if self._mid_line and (self._channel == "thought" or sys.stdout.isatty()):
            stderr.print()
        self._mid_line = False


def show_answer(
    events: Generator[Event, None, None],
    tokenizer: Tokenizer,
    *,
    write_text: bool = True,
    watch: bool = False,
    stats: bool = False,
    stop: Sequence[str] = (),
) -> GenerationResult:
    """Show an answer as it comes; one that was cut says so. Whatever happens, `events` ends.

    `stop` are the strings that were to end it.
    """
    watching = None
    if watch:
        watching = open_watch(CanvasReader(tokenizer.decode, tokenizer.eos_token_ids))
    redraws = watch and is_live()
    transcript = Transcript(hold_partial_lines=redraws) if write_text else None
    with contextlib.closing(events), typing_hidden() if redraws else contextlib.nullcontext():
        result = follow(events, transcript, watching)
    written = tokenizer.decode(result.token_ids)
    say_if_cut(result, next((text for text in stop if text in written), None))
    if stats:
        print_stats(result)
    return result


def follow(
    events: Iterator[Event], transcript: Transcript | None, watch: Watch | None
) -> GenerationResult:
    """Show events as they come and return the result; without a transcript no text is written."""
    try:
        with waiting("reading the prompt"):
            first = next(events)
        for event in chain((first,), events):
            match event:
                case PromptProcessed() if watch:
                    watch.start()
                case DenoisingStep() if watch:
                    watch.step(event, transcript.held if transcript else "")
                case BlockCommitted():
                    if watch:
                        watch.commit(event)
                    if transcript:
                        transcript.add(event.text, event.thought)
                case TokenWritten() if transcript:
                    transcript.add(event.text, event.thought)
                case Finished(result):
                    if transcript:
                        transcript.finish()
                        transcript = None
                    return result
    finally:
        if watch:
            watch.close()
        if transcript:
            transcript.abandon()
    raise AssertionError("the events ended without `Finished`")


def say_if_cut(result: GenerationResult, stopped_by: str | None) -> None:
    """Say that the answer was cut, if it was, or that there is none and what ended it."""
    if result.finish_reason != "length":
        if not (result.text or result.thought or result.tool_calls):
            by_stop = f"the stop string {stopped_by!r} ended the answer before its first letter"
            note("the model ended its answer at once" if stopped_by is None else by_stop)
        return
    count = result.stats.generated_tokens
    if result.stats.truncated_by == "max_tokens":
        note(f"the answer was cut at {count} tokens; --max-tokens allows more")
    else:
        note(f"the answer was cut at {count} tokens: the context is full")


def print_stats(result: GenerationResult) -> None:
    """A small table on standard error."""
    if is_live():
        say()
    rows = stats_rows(result)
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        say((f"{label:{width}}", "dim"), f"  {value}")


def stats_rows(result: GenerationResult) -> list[tuple[str, str]]:
    """What the answer cost, as (label, value) pairs."""
    stats = result.stats
    cut = (stats.truncated_by or "").replace("_", " ")
    return [
        ("prompt", _rate(stats.prompt_tokens - stats.cached_tokens, stats.prefill_seconds)),
        *_cached(stats),
        ("answer", _rate(stats.generated_tokens, stats.denoising_seconds + stats.commit_seconds)),
        ("mode", stats.mode) if stats.mode == "ar" else ("canvases", _canvases(stats)),
        ("time", ", ".join(f"{part} {share:.0%}" for part, share in stats.time_shares.items())),
        *_constraint(stats),
        ("tokens per step", f"{stats.tokens_per_step:.2f}"),
        ("model load", f"{stats.load_seconds:.2f} s"),
        ("peak memory", format_size(stats.peak_memory_bytes)),
        ("seed", str(stats.seed)),
        ("finish reason", result.finish_reason + (cut and f" ({cut})")),
    ]


def _rate(tokens: int, seconds: float) -> str:
    rate = f" ({tokens / seconds:.0f} tokens/s)" if seconds and tokens else ""
    return f"{tokens} tokens in {seconds:.2f} s{rate}"


def _cached(stats: GenerationStats) -> list[tuple[str, str]]:
    """What was kept of the turns before, if there were any."""
    if not stats.cached_tokens + stats.reread_tokens:
        return []
    again = f", {stats.reread_tokens} read again" if stats.reread_tokens else ""
    return [("kept from before", f"{stats.cached_tokens} tokens{again}")]


def _constraint(stats: GenerationStats) -> list[tuple[str, str]]:
    """What a constraint took of the time, if there was one."""
    if stats.constraint_seconds is None or stats.constraint_preparation_seconds is None:
        return []
    step = 1000 * stats.constraint_seconds / max(sum(stats.denoising_steps), 1)
    prepared = f"prepared in {stats.constraint_preparation_seconds:.2f} s"
    return [("constraint", f"{stats.constraint_seconds:.2f} s ({step:.1f} ms a step), {prepared}")]


def _canvases(stats: GenerationStats) -> str:
    total, early = sum(stats.denoising_steps), sum(stats.converged)
    each = " + ".join(map(str, stats.denoising_steps[:_SHOWN_CANVASES]))
    more = " + ..." if stats.canvases > _SHOWN_CANVASES else ""
    steps = f"{total} steps" + (f" ({each}{more})" if stats.canvases > 1 else "")
    return f"{stats.canvases} in {steps}, {early} converged early"


def write_report(path: Path, model: str, cost: Mapping[str, Any]) -> None:
    """What an answer cost and who made it, as one JSON object in a file; not what it says."""
    report = {"version": __version__, "model": model, **cost}
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
