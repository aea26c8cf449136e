"""A Hub model whose weights are fetched one file at a time, and sending a folder to the Hub.

    open_remote(name, folder)   every small file, and of each weight file only its header, in a
                                sparse file of the true size: enough to plan a conversion
    remote.fetch(path)          that file, whole
    remote.release(path)        no longer needed: gives the disk space back

Fetched files lie in the Hub cache, so that a broken download goes on where it stopped. A file that
was there before is never deleted.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.errors import ConfigError, HubError
from mlx_diffusiongemma.hub_cache import WEIGHTS, HubFile, ModelCache, check_revision
from mlx_diffusiongemma.hub_refusals import explain
from mlx_diffusiongemma.version import __version__

_LENGTH = struct.Struct("<Q")  # a safetensors header starts with its length
_MAX_HEADER = 100_000_000  # what safetensors itself accepts
_FETCHED = ".fetched"


@dataclass(frozen=True)
class Remote:
    """A Hub model of which `folder` holds what is needed at the moment."""

    folder: Path
    plan: hub.DownloadPlan
    cache: ModelCache
    weights: dict[str, HubFile]
    progress: Callable[[hub.DownloadProgress], None] | None = None

    @property
    def digests(self) -> dict[str, str]:
        """What the Hub calls the content of each weight file, by name."""
        return {name: file.etag for name, file in self.weights.items()}

    def fetch(self, file: Path) -> None:
        """Make the stub `file` whole."""
        wanted = self.weights.get(file.name)
        if wanted is None or file.is_symlink():
            return
        self.cache.check_space(wanted.size - self.cache.bytes_here(wanted))
        linked = self.cache.snapshot(self.plan.commit) / file.name
        if not linked.is_file():
            self._mark(file).touch()
            hub._Download(self.plan, self.cache, self.progress).run([wanted], 0)
        _link(linked, file)

    def release(self, file: Path) -> None:
        """Delete `file`, unless it was in the cache before."""
        if not self._mark(file).exists():
            return
        linked = self.cache.snapshot(self.plan.commit) / file.name
        for found in {linked.resolve(), linked, file}:
            found.unlink(missing_ok=True)
        self._mark(file).unlink()

    def _mark(self, file: Path) -> Path:
        """There when the file was fetched here, by this run or by one that was interrupted."""
        return self.folder / f"{file.name}{_FETCHED}"

    def close(self) -> None:
        """Remove the folder; what is in the Hub cache stays there."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def give_up(self) -> None:
        """Remove the folder, unless files were fetched here that the next run goes on with."""
        if not any(self.folder.glob(f"*{_FETCHED}")):
            self.close()


def open_remote(
    name: str,
    folder: Path,
    *,
    revision: str | None = None,
    progress: Callable[[hub.DownloadProgress], None] | None = None,
) -> Remote:
    """Open Hub model `name` in `folder`, which is made; HubError when it cannot be had."""
    from huggingface_hub import constants

    if not hub._HUB_ID.fullmatch(name) or os.path.isdir(os.path.expanduser(name)):
        raise ConfigError(
            f"`{name}` is not a Hub model, so there is nothing to fetch file by file",
            hint="leave out --low-disk",
        )
    wanted = "main" if revision is None else revision
    check_revision(wanted)
    if constants.HF_HUB_OFFLINE:
        raise HubError(
            f"HF_HUB_OFFLINE forbids to ask for the files of `{name}`",
            hint="unset it; a model that is on this disk needs neither the Hub nor --low-disk",
        )
    commit, listed = hub._list_files(name, wanted)
    cache = ModelCache(Path(constants.HF_HUB_CACHE), name)
    small = [file for file in listed if not file.name.endswith(WEIGHTS)]
    weights = {file.name: file for file in listed if file.name.endswith(WEIGHTS)}
    total = sum(file.size for file in listed)
    plan = hub.DownloadPlan(
        name, wanted, commit, cache.folder, tuple(file.name for file in listed), total, 0
    )
    folder.mkdir(parents=True, exist_ok=True)
    missing = [file for file in small if not (cache.snapshot(commit) / file.name).is_file()]
    hub._Download(plan, cache, None).run(missing, 0)
    for file in small:
        _link(cache.snapshot(commit) / file.name, folder / file.name)
    remote = Remote(folder, plan, cache, weights, progress)
    for file in weights.values():
        kept = cache.snapshot(commit) / file.name
        if kept.is_file():
            _link(kept, folder / file.name)
        else:
            _write_stub(name, commit, file, folder / file.name)
    return remote


def is_here(name: str, revision: str | None) -> bool:
    """Whether a Hub model is complete in the cache, so that resolving it fetches nothing large."""
    from huggingface_hub import constants

    wanted = "main" if revision is None else revision
    check_revision(wanted)
    return ModelCache(Path(constants.HF_HUB_CACHE), name).complete_snapshot(wanted) is not None


def _link(target: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target.resolve())


def _write_stub(repo: str, commit: str, file: HubFile, path: Path) -> None:
    """A sparse file of the true size that holds the header alone."""
    from huggingface_hub import errors, hf_hub_url

    if path.is_file() and not path.is_symlink() and path.stat().st_size == file.size:
        return  # left by a run that was interrupted
    url = hf_hub_url(repo, file.name, revision=commit)
    try:
        with hub._open_at(url, 0) as (_, pieces):
            header = _read_header(pieces, file, repo)
    except errors.HTTPError as error:
        raise explain(error, repo, commit) from error
    partial = path.with_suffix(".part")
    with partial.open("wb") as stub:
        stub.write(header)
        stub.truncate(file.size)
    os.replace(partial, path)


def _read_header(pieces: Iterator[bytes], file: HubFile, repo: str) -> bytes:
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) < _LENGTH.size:
            continue
        end = _LENGTH.size + _LENGTH.unpack_from(held)[0]
        if end > min(_MAX_HEADER, file.size):
            break
        if len(held) >= end:
            return bytes(held[:end])
    raise HubError(
        f"{file.name} of `{repo}` has no safetensors header", hint="is it a damaged upload?"
    )


def check_upload(repo: str) -> None:
    """HubError when `upload` to the Hub model `repo` would fail for a reason that is known now."""
    from huggingface_hub import HfApi, constants, errors

    if not hub._HUB_ID.fullmatch(repo):
        raise HubError(
            f"`{repo}` cannot be the name of a Hub model", hint="write it as `organisation/name`"
        )
    without = "or leave out --upload-repo and send the folder later"
    if constants.HF_HUB_OFFLINE:
        raise HubError(
            f"HF_HUB_OFFLINE forbids to send anything to `{repo}`", hint=f"unset it, {without}"
        )
    try:
        HfApi(library_name=hub._LIBRARY, library_version=__version__).whoami()
    except errors.LocalTokenNotFoundError:
        raise HubError(
            f"there is no token to send `{repo}` with", hint=f"run `hf auth login`, {without}"
        ) from None
    except (errors.HTTPError, ValueError) as error:
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        cause = f"HTTP {status}" if status else str(error).split("\n")[0] or type(error).__name__
        raise HubError(
            f"the Hub at {constants.ENDPOINT} does not say who would send `{repo}` ({cause})",
            hint=f"check the network, and `hf auth whoami`; {without}",
        ) from error


def upload(folder: Path, repo: str) -> str:
    """Send a folder to the Hub model `repo`, which is made when it is not there; returns its page.

    HubError when the Hub refuses; what has arrived is used by the next try.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi(library_name=hub._LIBRARY, library_version=__version__)
    try:
        page = api.create_repo(repo, repo_type="model", exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message="Upload the converted checkpoint"
        )
    except errors.HFValidationError as error:
        raise HubError(f"`{repo}` cannot be the name of a Hub model", hint=str(error)) from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled, ValueError) as error:
        raise HubError(
            f"the Hub did not take `{folder}` as `{repo}`: {str(error).splitlines()[0]}",
            hint="run `hf auth login` with a token that may write; the folder is complete, so "
            f"`hf upload {repo} {folder}` sends it later",
        ) from error
    return str(page)
