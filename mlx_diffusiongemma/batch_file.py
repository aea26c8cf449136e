"""A file of prompts answered line by line, in order, and gone on with where it was interrupted.

    prompts.jsonl --> requests --> Batch --> answers as they end --> answers.jsonl, in order

Every line of the answers carries a digest of what it answers, so that a file which belongs to other
prompts, options or weights is not taken for its beginning.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from mlx_diffusiongemma.batch import BatchAnswer, BatchRequest
from mlx_diffusiongemma.errors import ConfigError, DGemmaError, PromptError
from mlx_diffusiongemma.options import GenerationOptions
from mlx_diffusiongemma.responder import Prompt

_OPTIONS = frozenset(field.name for field in fields(GenerationOptions)) - {"constraint"}
_OTHERS = ("prompt", "messages", "id")


@dataclass(frozen=True, eq=False)
class RowAnswer:
    """A `BatchAnswer` whose outcome is anything that has a `to_dict`, or an error."""

    index: int
    outcome: Any
    passes: int


@dataclass(frozen=True, eq=False)
class FileRow:
    """One line of the prompts.

    Attributes:
        line: its number in the file, from 1.
        id: what the line calls itself, handed on to the answer; None when it has no name.
        request: what to answer, or the error that says why the line is none.
        digest: differs where the prompt, the options or the model differ.
    """

    line: int
    id: str | int | None
    request: BatchRequest | DGemmaError
    digest: str


def read_rows(
    name: str, content: bytes, options: GenerationOptions, system: str | None, model_identity: str
) -> list[FileRow]:
    """The rows of a JSON Lines file of that name; blank lines are no rows.

    A row is an object with "prompt" (text) or "messages" (a list of them), perhaps an "id", and
    any fields of `GenerationOptions`, which take the place of those in `options`. `system` is put
    before the prompts that are no messages. A line that is no such object becomes a row that says
    so.
    """
    common = json.dumps([asdict(options), system, model_identity]).encode()
    rows = []
    for line, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        own_name: str | int | None = None
        request: BatchRequest | DGemmaError
        try:
            values = _parsed(text)
            own_name = _id(values.get("id"))
            request = _request(values, options, system)
        except DGemmaError as error:
            request = type(error)(f"`{name}` line {line}: {error}", hint=error.hint)
        digest = hashlib.sha256(text + common).hexdigest()[:16]
        rows.append(FileRow(line, own_name, request, digest))
    return rows


def _parsed(text: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(
            f"not JSON: {error}", hint='write an object like {"prompt": "Hello"}'
        ) from None
    if not isinstance(values, dict):
        raise PromptError(
            f"{type(values).__name__} where an object belongs",
            hint='write an object like {"prompt": "Hello"}',
        )
    unknown = sorted(set(values) - _OPTIONS - set(_OTHERS))
    if unknown:
        raise ConfigError(
            f"unknown field {unknown[0]!r}",
            hint=f"a row has {', '.join(_OTHERS)} and the fields of GenerationOptions",
        )
    return values


def _id(value: object) -> str | int | None:
    if value is None or isinstance(value, str | int):
        return value
    raise ConfigError(f"id is {value!r}", hint="an id is text or a whole number")


def _request(
    values: Mapping[str, Any], options: GenerationOptions, system: str | None
) -> BatchRequest:
    asked = {name: value for name, value in values.items() if name in _OPTIONS}
    own = replace(options, **asked)
    if ("prompt" in values) == ("messages" in values):
        raise PromptError('"prompt" or "messages" is needed', hint="give one of them")
    prompt: Prompt = values["messages"] if "messages" in values else values["prompt"]
    if system is not None and isinstance(prompt, str):
        prompt = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    return BatchRequest(prompt, own)


class AnswerFile:
    """The answers, one line of JSON each, in the order of the rows. Use it in a `with`.

    Opening it drops half a line at its end, the trace of a kill, and counts the whole ones.

    Attributes:
        done: how many rows have their line.
        failed: the line numbers of rows whose line says why there is no answer.
    """

    def __init__(self, path: Path, rows: list[FileRow]):
        self._path = path
        self._rows = rows
        self._waiting: dict[int, bytes] = {}
        self.done = 0
        self.failed: list[int] = []

    def __enter__(self) -> "AnswerFile":
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(
                f"`{self._path}` is no regular file",
                hint="the answers are read again to go on after an interruption: name a file",
            )
        file = self._path.open("a+b")
        try:
            self._lock(file)
            self._begin(file)
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(self, *error: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def left(self) -> list[FileRow]:
        """The rows without a line."""
        return self._rows[self.done :]

    def add(self, row: FileRow, outcome: Any) -> None:
        """Write what became of a row, as soon as all the rows before it have their lines."""
        if isinstance(outcome, DGemmaError):
            self.failed.append(row.line)
            said = {"error": str(outcome), "hint": outcome.hint}
        else:
            said = outcome.to_dict()
        named = _head(row) if row.id is None else _head(row) | {"id": row.id}
        self._waiting[row.line] = json.dumps(named | said, ensure_ascii=False).encode() + b"\n"
        while self.done < len(self._rows):
            text = self._waiting.pop(self._rows[self.done].line, None)
            if text is None:
                break
            self._file.write(text)
            self._file.flush()  # a kill loses no line that is written
            self.done += 1

    def _lock(self, file: BinaryIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"`{self._path}` is being written by another process",
                hint="wait for it, or give another --out",
            ) from None

    def _begin(self, file: BinaryIO) -> None:
        """Count the lines that answer the rows, and drop the beginning of the next one."""
        file.seek(0)
        *lines, tail = file.read().split(b"\n")
        for line in lines:
            values = _answer_to(self._rows[self.done], line) if self.left() else None
            if values is None:
                raise self._not_ours()
            if "error" in values:
                self.failed.append(self._rows[self.done].line)
            self.done += 1
        if tail:
            if not self.left() or not _begins(self._rows[self.done], tail):
                raise self._not_ours()
            file.truncate(sum(len(line) + 1 for line in lines))

    def _not_ours(self) -> ConfigError:
        return ConfigError(
            f"`{self._path}` line {self.done + 1} is not the answer to these prompts, options and "
            "weights",
            hint="give another --out, or remove the file to begin anew",
        )


def _head(row: FileRow) -> dict[str, Any]:
    return {"line": row.line, "request": row.digest}


def _answer_to(row: FileRow, line: bytes) -> dict[str, Any] | None:
    """What a line says, if it is about the row."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(values, dict) and values.items() >= _head(row).items()
    return values if is_ours else None


def _begins(row: FileRow, part: bytes) -> bool:
    """Whether part of a line may be what a kill left of the row's answer."""
    head = json.dumps(_head(row)).encode()[:-1]
    return part.startswith(head) or head.startswith(part)


def answer_rows(
    out: AnswerFile,
    stream_batch: Callable[[Iterator[BatchRequest]], Iterator[BatchAnswer | RowAnswer]],
) -> Iterator[int]:
    """Answer the rows that have no line in `out` yet; yields how many passes that took so far."""
    asked: list[FileRow] = []

    def requests() -> Iterator[BatchRequest]:
        for row in out.left():
            if isinstance(row.request, DGemmaError):
                out.add(row, row.request)
                continue
            asked.append(row)
            yield row.request

    for answer in stream_batch(requests()):
        out.add(asked[answer.index], answer.outcome)
        yield answer.passes
