"""The folder a conversion works in, beside its output, and the journal that lets it go on.

    OUT.partial/lock             held while a conversion runs
    OUT.partial/journal.json     fingerprint of the plan, digests of the source's files; of each
                                 finished shard size and digest
    OUT.partial/result/          what becomes OUT by one rename at the end

A shard is in the journal only when all of it is on the disk. What is there besides is written anew.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlx_diffusiongemma.convert.identity import changed_files
from mlx_diffusiongemma.convert.records import TensorError
from mlx_diffusiongemma.convert.writer import PARTIAL, WrittenFile, sync_folder
from mlx_diffusiongemma.errors import ConversionError

_HASHED_AT_ONCE = 8 << 20
_JOURNAL, _LOCK = "journal.json", "lock"


@dataclass(frozen=True)
class FinishedShard:
    """A shard on the disk and how far its packed tensors are from the source, by parameter."""

    file: WrittenFile
    errors: Mapping[str, TensorError]


@dataclass
class Journal:
    """What is finished, by shard file; `fingerprint` is that of the plan.

    `source` is what tells the source's files from others, by their name.
    """

    fingerprint: str
    source: dict[str, str]
    shards: dict[str, FinishedShard] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Journal":
        """Read a journal; ConversionError when it is damaged."""
        try:
            values = json.loads(path.read_text())
            shards = {
                name: FinishedShard(
                    WrittenFile(shard["nbytes"], shard["sha256"]),
                    {key: TensorError(**error) for key, error in shard["errors"].items()},
                )
                for name, shard in values["shards"].items()
            }
            return cls(values["fingerprint"], dict(values["source"]), shards)
        except (
            *(OSError, ValueError, RecursionError),  # not there, no JSON, nested too deep
            *(KeyError, TypeError, AttributeError),
        ) as error:
            raise ConversionError(
                f"`{path}` cannot be read: {error}",
                hint=f"remove `{path.parent}` and start again",
            ) from None

    def save(self, path: Path) -> None:
        """Replace the journal at once: a reader finds the old one or the new one."""
        shards = {
            name: {
                **asdict(shard.file),
                "errors": {key: asdict(error) for key, error in shard.errors.items()},
            }
            for name, shard in self.shards.items()
        }
        values = {"fingerprint": self.fingerprint, "source": self.source, "shards": shards}
        write_text(path, json.dumps(values, indent=1))


class Workspace(AbstractContextManager["Workspace"]):
    """`OUT.partial` of the output OUT, locked while it is open.

    Opening starts a journal, or with `resume` goes on with the one that is there. ConversionError
    when there is something in the way: the output itself, another conversion that runs, one that
    was interrupted (without `resume`) or that had another plan.
    """

    def __init__(
        self, output: Path, fingerprint: str, source: dict[str, str], *, resume: bool
    ) -> None:
        self._output = output = Path(os.path.abspath(output))
        self.folder = workspace_folder(output)
        self.result = self.folder / "result"
        self._journal_path = self.folder / _JOURNAL
        journal = _load(self.folder)
        # Killed between the last rename and the removal of the journal: only the latter is left.
        is_there = os.path.lexists(output)  # also a link that leads nowhere
        self.is_renamed = journal is not None and is_there and not self.result.exists()
        if not (resume and self.is_renamed):
            _check_absent(output)
        if journal and journal.shards:
            self._check_interrupted(journal, fingerprint, source, resume=resume)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self.journal = Journal(fingerprint, source, journal.shards if journal else {})
            self.journal.save(self._journal_path)
            if not self.is_renamed:
                self.result.mkdir(exist_ok=True)
                sync_folder(self.folder)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if not self.journal.shards and not self.is_renamed:
            self.remove()
        os.close(self._lock)

    def record(self, name: str, shard: FinishedShard) -> None:
        """Note that a shard is finished."""
        self.journal.shards[name] = shard
        self.journal.save(self._journal_path)

    def check_finished(self) -> None:
        """Hash the shards that the journal calls finished; forget and remove everything else."""
        for name, shard in list(self.journal.shards.items()):
            if hash_file(self.result / name) != shard.file:
                del self.journal.shards[name]
        self.journal.save(self._journal_path)
        for path in self.result.iterdir():
            if path.name not in self.journal.shards:
                path.unlink()

    def publish(self) -> None:
        """Turn the result into the output, by one rename."""
        sync_folder(self.result)
        os.rename(self.result, self._output)
        sync_folder(self._output.parent)
        self.is_renamed = True

    def remove(self) -> None:
        """Remove the folder; the journal last, so that whatever is left of it explains itself."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == _JOURNAL):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.folder.rmdir()

    def _check_interrupted(
        self, journal: Journal, fingerprint: str, source: dict[str, str], *, resume: bool
    ) -> None:
        if not resume:
            raise _interrupted(self.folder)
        if journal.fingerprint != fingerprint:
            raise ConversionError(
                f"`{self.folder}` holds a conversion with other settings or of another model",
                hint="use the settings it was started with, or remove the folder",
            )
        if changed := changed_files(journal.source, source):
            raise ConversionError(
                f"the source changed: `{changed[0]}` is not the file that the conversion in "
                f"`{self.folder}` was begun with",
                hint="remove that folder to start again, or bring the old file back",
            )


def workspace_folder(output: Path) -> Path:
    """The folder in which `output` is made."""
    output = Path(os.path.abspath(output))  # also `.`, which has no name
    return output.parent / (output.name + PARTIAL)


def check_free(output: Path) -> None:
    """ConversionError when something is in the way of a conversion that starts from nothing."""
    _check_absent(Path(os.path.abspath(output)))
    folder = workspace_folder(output)
    journal = _load(folder)
    if journal and journal.shards:
        raise _interrupted(folder)


def _load(folder: Path) -> Journal | None:
    _check_ours(folder)
    return Journal.load(folder / _JOURNAL) if (folder / _JOURNAL).exists() else None


def _check_absent(output: Path) -> None:
    if os.path.lexists(output):
        raise ConversionError(
            f"`{output}` exists already", hint="name another folder, or remove this one"
        )


def _interrupted(folder: Path) -> ConversionError:
    return ConversionError(
        f"`{folder}` holds a conversion that was interrupted",
        hint="`--resume` goes on with it; remove the folder to start again",
    )


def _check_ours(folder: Path) -> None:
    """ConversionError when a conversion did not make this folder, which it removes at the end."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if _JOURNAL not in names and names - {_LOCK, _JOURNAL + PARTIAL}:
        raise ConversionError(
            f"`{folder}` is in the way: a conversion would work there",
            hint="move it, or name another output",
        )


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise ConversionError(
            f"another conversion works in `{folder}`", hint="wait for it, or name another output"
        ) from None
    return descriptor


def hash_file(path: Path) -> WrittenFile | None:
    """Size and digest of a file; None when there is none."""
    digest = hashlib.sha256()
    buffer = bytearray(_HASHED_AT_ONCE)
    nbytes = 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                nbytes += count
    except FileNotFoundError:
        return None
    return WrittenFile(nbytes, digest.hexdigest())


def write_text(path: Path, text: str) -> None:
    """Replace a small file at once and durably."""
    partial = path.with_name(path.name + PARTIAL)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)
