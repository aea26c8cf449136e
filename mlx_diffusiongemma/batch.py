"""Several answers at once: their loops share passes, so that each weight is read once for all.

    requests --> [ loop ] [ loop ] [ loop ] --> passes --> one for all that ask for the same kind
                     ^                                         |
                     +------------- each its answer -----------+

An answer that is complete leaves, and the next request takes its place. No loop knows of the
others: every answer is the one that it would be alone, but for the rounding of larger products.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import ConfigError, DGemmaError
from mlx_diffusiongemma.events import GenerationResult
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.passes import Answer, Evaluate, Predict, Read
from mlx_diffusiongemma.prefix_cache import read_together
from mlx_diffusiongemma.ranges import Range
from mlx_diffusiongemma.responder import Prompt, Responder
from mlx_diffusiongemma.turns import turn
from mlx_diffusiongemma.writing import Writing


@dataclass(frozen=True, eq=False)
class BatchRequest:
    """One of the prompts of a batch; `Runtime.stream` has the same arguments."""

    prompt: Prompt
    options: GenerationOptions = field(default_factory=GenerationOptions)
    draws: Draws | None = None


def requests_for(
    prompts: Sequence[Prompt], options: GenerationOptions | Sequence[GenerationOptions]
) -> list[BatchRequest]:
    """One request for each prompt; ConfigError when the options are not one for all or for each."""
    if isinstance(prompts, str):
        raise ConfigError(f"prompts is {prompts!r}", hint="give a list of prompts")
    given = [options] * len(prompts) if isinstance(options, GenerationOptions) else options
    if len(given) != len(prompts):
        raise ConfigError(
            f"{len(given)} options are given for {len(prompts)} prompts",
            hint="give one GenerationOptions for all, or one for each",
        )
    return list(map(BatchRequest, prompts, given))


@dataclass(frozen=True, eq=False)
class BatchAnswer:
    """What became of one request.

    Attributes:
        index: which request, from 0.
        outcome: its result, or the error that kept it from one.
        passes: passes of the network up to now, of all requests together: each reads the weights
            once.
    """

    index: int
    outcome: GenerationResult | DGemmaError
    passes: int


@dataclass(eq=False)
class _Row:
    """A request whose answer is being written."""

    index: int
    writing: Writing
    asked: Read | Predict | None = None
    seconds: float = 0.0  # spent on it since its last event
    error: DGemmaError | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.writing.is_over

    def advance(self, answer: Answer = None) -> None:
        """Run the loop to its next pass of the network, or in mode "ar" to its next token.

        What it leaves lazy is evaluated here, so for one row after the other: arrays of a
        vocabulary's width are temporary for one row only.
        """
        started = time.perf_counter()
        try:
            self.asked, item = None, self.writing.loop.send(answer)
            while not isinstance(item, Read | Predict):
                if isinstance(item, Evaluate):
                    mx.eval(*item.arrays)
                else:
                    self.seconds += time.perf_counter() - started
                    self.writing.take(item, self.seconds)
                    self.seconds, started = 0.0, time.perf_counter()
                    if self.writing.is_over or not self.writing.asks_for_passes:
                        return
                item = next(self.writing.loop)
            self.asked = item
        except DGemmaError as error:
            self.error = error
        finally:
            self.seconds += time.perf_counter() - started


class Batch:
    """Answers requests, at most `rows` at a time. Iterate over `answers`."""

    def __init__(self, responder: Responder, requests: Iterable[BatchRequest], rows: int):
        Range(1, integer=True).check("rows", rows)
        self._responder = responder
        self._waiting = enumerate(requests)
        self._most = rows
        self._rows: list[_Row] = []
        self._passes = 0

    def answers(self) -> Generator[BatchAnswer, None, None]:
        """Yield what becomes of the requests, in the order in which they end.

        Closing the iterator cancels those that are being answered. What is no `DGemmaError` of one
        request ends them all.
        """
        mx.reset_peak_memory()
        try:
            while True:
                yield from self._admit()
                if not self._rows:
                    return
                with turn():
                    self._take_turn()
                yield from self._leave()
        finally:
            for row in self._rows:
                row.writing.loop.close()

    def _admit(self) -> Iterator[BatchAnswer]:
        """Begin answers while there is room; requests that cannot be read end here."""
        while len(self._rows) < self._most:
            try:
                index, request = next(self._waiting)
            except StopIteration:
                return
            if not isinstance(request, BatchRequest):
                raise ConfigError(f"a request is {request!r}", hint="give BatchRequest objects")
            try:
                prompt_ids = self._responder.encode(request.prompt, request.options)
                with turn():
                    writing = self._responder.begin(prompt_ids, request.options, request.draws)
            except DGemmaError as error:
                yield BatchAnswer(index, error, self._passes)
                continue
            self._rows.append(_Row(index, writing))

    def _leave(self) -> Iterator[BatchAnswer]:
        for row in [row for row in self._rows if row.is_over]:
            self._rows.remove(row)
            row.writing.loop.close()
            outcome = row.error or row.writing.result()
            yield BatchAnswer(row.index, outcome, self._passes)

    def _take_turn(self) -> None:
        """One pass for every row that asks for the kind that is due."""
        for row in self._rows:
            if row.asked is None:
                row.advance()
        reads = [row for row in self._rows if isinstance(row.asked, Read)]
        predicts = [row for row in self._rows if isinstance(row.asked, Predict)]
        if reads:  # first, so that these rows join the next step of the others
            self._carry_out(reads, self._read)
        elif predicts:
            self._carry_out(predicts, self._predict)

    def _carry_out(
        self, rows: Sequence[_Row], compute: Callable[[Sequence[_Row]], list[Answer]]
    ) -> None:
        """Do what the rows asked for, which takes each an equal share of the time."""
        started = time.perf_counter()
        answers = compute(rows)[::-1]
        share = (time.perf_counter() - started) / len(rows)
        for row in rows:
            row.seconds += share
            row.advance(answers.pop())  # nobody else keeps the logits of rows that have moved on

    def _read(self, rows: Sequence[_Row]) -> list[Answer]:
        reads = [
            (row.writing.cache, row.asked.tokens) for row in rows if isinstance(row.asked, Read)
        ]
        self._passes += read_together(self._responder.model, reads)
        return [None] * len(rows)

    def _predict(self, rows: Sequence[_Row]) -> list[Answer]:
        asked = [row.asked for row in rows if isinstance(row.asked, Predict)]
        self._passes += 1
        logits = self._responder.model.predict_rows(
            [one.canvas for one in asked],
            [row.writing.cache.kv for row in rows],
            [one.belief for one in asked],
        )
        return list(logits)
