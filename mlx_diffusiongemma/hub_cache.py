"""The Hub cache of one model: what is there, and how the rest of a file gets there. No network.

models--org--name/refs/<branch>               the commit that the branch was last
                  snapshots/<commit>/<file>   link to a blob
                  blobs/<etag>                content of a file
                  blobs/<etag>.incomplete     as much of it as has arrived
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mlx_diffusiongemma.errors import ConfigError, HubError

WEIGHTS = ".safetensors"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_INDEX = "model.safetensors.index.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)

logger = logging.getLogger(__name__)

# Opens a file at a byte: True if what comes starts there (False: at zero), and its pieces.
OpenAt = Callable[[int], AbstractContextManager[tuple[bool, Iterator[bytes]]]]


class CutShortError(Exception):
    """Fewer bytes arrived than the file has."""


@dataclass(frozen=True)
class HubFile:
    """A file as the Hub lists it: bytes, name of its blob in the cache, digest where known."""

    name: str
    size: int
    etag: str
    sha256: str | None


def format_size(size: int) -> str:
    """A number of bytes for people, in decimal units: `0 B`, `15.4 GB`."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def is_commit(revision: str) -> bool:
    """Whether `revision` is a full commit hash, which always means the same files."""
    return bool(_COMMIT.fullmatch(revision))


def check_revision(revision: str) -> None:
    """ConfigError unless `revision` can name a branch, tag or commit, and a file in a cache."""
    parts = revision.split("/")  # of which git allows none to be empty or to begin with a dot
    if not all(parts) or any(part.startswith(".") for part in parts) or "\0" in revision:
        raise ConfigError(
            f"revision is {revision!r}", hint="revision must be a branch, tag or commit"
        )


def is_complete(snapshot: Path) -> bool:
    """Whether config, tokenizer and every weight file are there; weights are fetched last."""
    here = {path.name for path in snapshot.glob("*") if path.is_file()}
    needed = {"config.json"}
    if _INDEX in here:
        try:
            needed |= set(json.loads((snapshot / _INDEX).read_text())["weight_map"].values())
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return False
    elif not any(name.endswith(WEIGHTS) and "-of-" not in name for name in here):
        return False
    return needed <= here and any(name.startswith("tokenizer.") for name in here)


@dataclass(frozen=True)
class ModelCache:
    """The folder of model `repo` in the cache `hub`; it need not exist yet."""

    hub: Path
    repo: str

    @property
    def folder(self) -> Path:
        """Where everything of this model lies."""
        return self.hub / f"models--{self.repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        """The folder with the files of one commit."""
        return self.folder / "snapshots" / commit

    def blob(self, etag: str) -> Path:
        """The content of a file."""
        return self.folder / "blobs" / etag

    def partial(self, etag: str) -> Path:
        """What has arrived of a file whose download broke off."""
        return self.folder / "blobs" / f"{etag}.incomplete"

    def lock(self, etag: str) -> Path:
        """The lock that huggingface_hub, too, holds while it writes this blob."""
        return self.hub / ".locks" / self.folder.name / f"{etag}.lock"

    def complete_snapshot(self, revision: str) -> Path | None:
        """The snapshot of a branch, tag or commit, if all we need of it is there."""
        commit = revision
        if not is_commit(revision):
            try:
                commit = (self.folder / "refs" / revision).read_text().strip()
            except (OSError, ValueError):
                return None
        found = is_commit(commit) and is_complete(self.snapshot(commit))
        return self.snapshot(commit) if found else None

    def bytes_here(self, file: HubFile) -> int:
        """How much of a file's blob is here: all, a part, nothing."""
        if self.blob(file.etag).is_file():
            return file.size
        partial = self.partial(file.etag)
        return min(partial.stat().st_size, file.size) if partial.is_file() else 0

    def remember(self, revision: str, commit: str) -> None:
        """Note what a branch means, for the time when the Hub is out of reach."""
        ref = self.folder / "refs" / revision
        if revision == commit or (ref.is_file() and ref.read_text() == commit):
            return
        try:
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit)
        except OSError as error:
            logger.warning("cannot note in the cache what `%s` means: %s", revision, error)

    def receive(self, file: HubFile, open_at: OpenAt) -> Iterator[int]:
        """Complete the blob of a file from where it broke off; yields how much of it is here.

        Raises CutShortError when too few bytes came, HubError when they are not the file's.
        """
        partial = self.partial(file.etag)
        start = partial.stat().st_size if partial.is_file() else 0
        if start != file.size or not start:
            with (
                open_at(start if start < file.size else 0) as (continues, pieces),
                partial.open("ab" if continues else "wb") as target,
            ):
                yield target.tell()
                for piece in pieces:
                    target.write(piece)
                    yield target.tell()
        if partial.stat().st_size < file.size:
            raise CutShortError(f"{partial.stat().st_size} of {file.size} bytes arrived")
        if not _is_intact(partial, file):
            partial.unlink()
            raise HubError(
                f"{file.name} of `{self.repo}` arrived damaged and was removed",
                hint="run the same command again; this file starts again from zero",
            )
        os.replace(partial, self.blob(file.etag))

    def check_space(self, needed: int) -> None:
        """Raise HubError unless the disk of the cache has room for `needed` more bytes."""
        if self._free() < needed:
            raise self._no_room(needed)

    def explain(self, error: OSError, needed: int) -> HubError:
        """What to say about a failed write with `needed` bytes still to come."""
        if error.errno in _FULL:
            return self._no_room(needed)
        return HubError(
            f"cannot write `{error.filename or self.folder}`: {error.strerror}",
            hint="check the rights to this folder, or set HF_HOME to another one",
        )

    def _no_room(self, needed: int) -> HubError:
        free = format_size(self._free())
        return HubError(
            f"`{self.repo}` needs {format_size(needed)} more, but `{self.hub}` has {free} free",
            hint="free some space, or set HF_HOME to a folder on a larger disk; what has arrived "
            "is kept",
        )

    def _free(self) -> int:
        folder = self.hub
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free


def _is_intact(path: Path, file: HubFile) -> bool:
    if path.stat().st_size != file.size:
        return False
    if not file.sha256:
        return True
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
