"""What was chosen for a site on this machine: in a file by tuning, in the environment by hand.

    {"format": 1, "machine": {...}, "sites": {"geglu float16[704]": {"choice": "custom", ...}}}

A file that is damaged, or of another machine, MLX or package, counts for nothing, with one note.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.errors import ConfigError

logger = logging.getLogger(__name__)

OVERRIDE = "DGEMMA_SITES"  # environment variable: SITE=CHOICE,SITE=CHOICE
STOCK, CUSTOM = "stock", "custom"
_FORMAT = 1


def default_path() -> Path:
    """Where the file lies: XDG_CACHE_HOME if set, else the platform's folder for caches."""
    home = Path.home()
    usual = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "mlx-diffusiongemma" / "tuning.json"


@cache
def machine() -> dict[str, str]:
    """What a measured choice holds for: device, system, MLX and our kernels."""
    digest = hashlib.sha256()
    for folder, endings in (("metal", (".metal", ".h")), ("kernels", (".py",))):
        for file in sorted(files(f"mlx_diffusiongemma.{folder}").iterdir(), key=lambda f: f.name):
            if file.name.endswith(endings):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return {
        "device": str(mx.device_info().get("device_name", "CPU")),
        "system": platform.mac_ver()[0] or platform.release(),
        "mlx": version("mlx"),
        "kernels": digest.hexdigest()[:16],
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The sites of a file and what was found for each; nothing where the file does not hold."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sites, origin = found["sites"], (found["format"], found["machine"])
        is_whole = all(isinstance(site["choice"], str) for site in sites.values())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        logger.warning("`%s` is damaged and is ignored; `dgemma-mlx tune` makes it anew", path)
        return {}
    if origin != (_FORMAT, machine()):
        logger.warning(
            "`%s` was measured with another device, system, mlx or version of this package and is "
            "ignored; `dgemma-mlx tune` makes it anew",
            path,
        )
        return {}
    return dict(sites)


def write(path: Path, sites: dict[str, dict[str, Any]]) -> None:
    """Replace the file at once: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": _FORMAT, "machine": machine(), "sites": sites}, indent=1) + "\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@cache
def _tuned(path: Path) -> dict[str, dict[str, Any]]:
    return read(path)  # once in a process, so that a note comes once


def forget() -> None:
    """Have the file read again: it has changed."""
    _tuned.cache_clear()


def choice(operation: str, site: str, known: tuple[str, ...]) -> str | None:
    """What is chosen for a site of `operation`, one of `known`: by hand, else by the file, or None.

    ConfigError when the environment names what there is not.
    """
    for part in filter(None, os.environ.get(OVERRIDE, "").split(",")):
        name, _, chosen = part.strip().partition("=")
        if name == operation:
            if chosen not in known:
                raise ConfigError(
                    f"{OVERRIDE} chooses {chosen!r} for {name}",
                    hint=f"it may be {', '.join(known)}",
                )
            return chosen
    found = _tuned(default_path()).get(site)
    return found["choice"] if found and found["choice"] in known else None
