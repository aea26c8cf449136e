"""From a name to a folder: `demo`, a folder on this disk, or a model of the Hugging Face Hub.

    "demo"      --> the model that ships with the package
    a folder    --> that folder
    "org/name"  --> its snapshot in the Hub cache; what is missing there is downloaded first

huggingface_hub asks, checks access and keeps the cache. The bytes of a file are received by
`hub_cache`, because hf_hub_download starts a file that broke off again from zero
(huggingface_hub issue 4196).
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

from mlx_diffusiongemma.errors import ConfigError, HubError
from mlx_diffusiongemma.hub_cache import (
    WEIGHTS,
    CutShortError,
    HubFile,
    ModelCache,
    check_revision,
    format_size,
    is_commit,
)
from mlx_diffusiongemma.hub_refusals import NOT_A_HUB, HubUnreachableError, explain
from mlx_diffusiongemma.version import __version__

DEFAULT_MODEL = "mlx-community/diffusiongemma-26B-A4B-it-4bit"
DEMO = "demo"
# Pauses after breaks that brought no byte in between; then the download gives up.
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)

_FORMS = f"give `{DEMO}`, an existing folder, or a Hub model such as `{DEFAULT_MODEL}`"
_LIBRARY = "mlx-diffusiongemma"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WANTED = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
    *("processor_config.json", "preprocessor_config.json"),
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownloadPlan:
    """What is about to be downloaded; announced before the first byte.

    Attributes:
        repo, revision, commit: what was asked for, and the commit that the revision means now.
        folder: where the cache keeps this model.
        files: names of all files of the snapshot.
        total_bytes, cached_bytes: size of these files; how much of it is on this disk already.
    """

    repo: str
    revision: str
    commit: str
    folder: Path
    files: tuple[str, ...]
    total_bytes: int
    cached_bytes: int


@dataclass(frozen=True)
class DownloadProgress:
    """How far a download is: `done_bytes` of `total_bytes`, with `file` in work."""

    done_bytes: int
    total_bytes: int
    file: str


OnPlan = Callable[[DownloadPlan], None]
OnProgress = Callable[[DownloadProgress], None]


def resolve(
    name: str,
    *,
    revision: str | None = None,
    progress: OnProgress | None = None,
    on_plan: OnPlan | None = None,
) -> Path:
    """The folder that holds model `name`, downloaded from the Hub if it is not on this disk.

    `revision` is a branch, tag or commit of a Hub model. A commit that is here already needs no
    network. A branch is looked up; when the Hub is out of reach, the copy of it in the cache
    serves, with a warning. `on_plan` is called once, and only when bytes are missing; `progress`
    many times after that. Raises HubError or, for a revision of a folder, ConfigError.
    """
    folder = os.path.expanduser(name)
    is_demo = name == DEMO
    if is_demo or os.path.isdir(folder):
        if revision is not None:
            raise ConfigError(
                f"`{name}` is a folder on this disk, so it has no revision `{revision}`",
                hint="only Hub models have revisions",
            )
        return Path(str(files("mlx_diffusiongemma"))) / DEMO if is_demo else Path(folder)
    if os.path.isfile(folder):
        raise HubError(f"model `{name}` is a file", hint=_FORMS)
    if not _HUB_ID.fullmatch(name):
        raise HubError(f"there is no folder `{name}`, and it is not a Hub model", hint=_FORMS)
    wanted = "main" if revision is None else revision
    check_revision(wanted)
    return _from_hub(name, wanted, progress, on_plan)


def _from_hub(
    repo: str, revision: str, progress: OnProgress | None, on_plan: OnPlan | None
) -> Path:
    from huggingface_hub import constants

    cache = ModelCache(Path(constants.HF_HUB_CACHE), repo)
    kept = cache.complete_snapshot(revision)
    if kept and (constants.HF_HUB_OFFLINE or is_commit(revision)):
        return kept
    if constants.HF_HUB_OFFLINE:
        raise HubError(
            f"`{repo}` (revision `{revision}`) is not complete on this disk, and HF_HUB_OFFLINE "
            "forbids to download it",
            hint=f"unset HF_HUB_OFFLINE, or give `{DEMO}` or a folder",
        )
    try:
        commit, listed = _list_files(repo, revision)
    except HubUnreachableError as error:
        if kept is None:
            raise
        logger.warning("%s; using `%s` from the cache, commit %s", error, repo, kept.name)
        return kept
    snapshot = cache.snapshot(commit)
    missing = [file for file in listed if not (snapshot / file.name).is_file()]
    if missing:
        total = sum(file.size for file in listed)
        finished = total - sum(file.size for file in missing)
        here = finished + sum(cache.bytes_here(file) for file in missing)
        names = tuple(file.name for file in listed)
        plan = DownloadPlan(repo, revision, commit, cache.folder, names, total, here)
        cache.check_space(total - here)
        if on_plan and here < total:
            on_plan(plan)
        _Download(plan, cache, progress).run(missing, finished)
    # Only now, so that a branch never leads to a snapshot that is not complete.
    cache.remember(revision, commit)
    return snapshot


def _list_files(repo: str, revision: str) -> tuple[str, list[HubFile]]:
    """The commit that `revision` means now and the files we want of it, weights last."""
    from huggingface_hub import HfApi, constants, errors

    api = HfApi(library_name=_LIBRARY, library_version=__version__)
    timeout = constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout)
    except errors.HFValidationError as error:
        raise HubError(f"`{repo}` cannot be the name of a Hub model", hint=_FORMS) from error
    except (errors.HTTPError, *NOT_A_HUB) as error:
        raise explain(error, repo, revision) from error
    listed = [
        HubFile(found.rfilename, found.size or 0, sha256 or found.blob_id or "", sha256)
        for found in info.siblings or ()
        for sha256 in (found.lfs.sha256 if found.lfs else None,)
        if "/" not in found.rfilename
        and any(fnmatchcase(found.rfilename, pattern) for pattern in _WANTED)
    ]
    for what, ending in (("config.json", "config.json"), (f"*{WEIGHTS} files", WEIGHTS)):
        if not any(file.name.endswith(ending) for file in listed):
            raise HubError(
                f"`{repo}` has no {what}, so it is no model that can run here",
                hint=f"pick a repository in safetensors format, such as `{DEFAULT_MODEL}`",
            )
    return f"{info.sha}", sorted(listed, key=lambda file: (file.name.endswith(WEIGHTS), file.name))


class _Download:
    """Files on their way from the Hub into the cache."""

    def __init__(self, plan: DownloadPlan, cache: ModelCache, progress: OnProgress | None):
        self._plan, self._cache, self._progress = plan, cache, progress
        self._finished = 0

    def run(self, missing: Sequence[HubFile], finished: int) -> None:
        """Fetch the missing files one after the other; the other files have `finished` bytes."""
        self._finished = finished
        for file in missing:
            self._fetch(file)
            self._finished += file.size

    def _fetch(self, file: HubFile) -> None:
        """Fetch one file; goes on after a break, unless several brought no byte in between."""
        from huggingface_hub import errors

        attempt, most = 0, -1
        while True:
            try:
                for here in self._receive(file):
                    if self._progress:
                        done = self._finished + here
                        self._progress(DownloadProgress(done, self._plan.total_bytes, file.name))
                return
            except (errors.HTTPError, errors.LocalEntryNotFoundError, CutShortError) as error:
                explained = explain(error, self._plan.repo, self._plan.revision)
                if not isinstance(explained, HubUnreachableError):
                    raise explained from error
                here = self._cache.bytes_here(file)
                attempt, most = (0, here) if here > most else (attempt + 1, most)
                if attempt == len(RETRY_SECONDS):
                    raise HubError(
                        f"the download of `{self._plan.repo}` broke off at {format_size(here)} of "
                        f"{format_size(file.size)} of {file.name}: {explained}",
                        hint="run the same command again later; it goes on from there",
                    ) from error
                logger.info("%s; trying again in %g s", explained, RETRY_SECONDS[attempt])
            time.sleep(RETRY_SECONDS[attempt])

    def _receive(self, file: HubFile) -> Iterator[int]:
        """Bring one file into the snapshot; yields how many bytes of it are here."""
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import WeakFileLock

        repo, commit, cache = self._plan.repo, self._plan.commit, self._cache
        api = HfApi(library_name=_LIBRARY, library_version=__version__)
        url = hf_hub_url(repo, file.name, revision=commit)
        try:
            etag = api.get_hf_file_metadata(url=url).etag or file.etag
            file, lock = replace(file, etag=etag), cache.lock(etag)
            for path in (lock, cache.blob(etag)):
                path.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock):
                if not cache.blob(etag).is_file():
                    yield from cache.receive(file, lambda start: _open_at(url, start))
            # Links the blob into the snapshot, in whatever way this disk allows.
            api.hf_hub_download(repo, file.name, revision=commit)
        except OSError as error:
            # Those of the network carry no errno.
            if error.errno is None:
                raise
            needed = self._plan.total_bytes - self._finished - cache.bytes_here(file)
            raise cache.explain(error, needed) from error


@contextmanager
def _open_at(url: str, start: int) -> Iterator[tuple[bool, Iterator[bytes]]]:
    """Open a file of the Hub at byte `start`; see `hub_cache.OpenAt`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers(library_name=_LIBRARY, library_version=__version__)
    headers |= {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        yield response.status_code == 206, response.iter_bytes()
