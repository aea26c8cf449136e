"""MANIFEST.json of the fixtures: what was recorded, with which versions and seeds, and hashes."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_arrays(path: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write a fixture; `about` goes into its metadata as JSON, readable without the arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, path, metadata={"about": json.dumps(about, sort_keys=True)})


def write_section(name: str, versions: dict[str, str], facts: dict[str, Any]) -> None:
    """Replace one section of the manifest; its files are those in the folder of that name.

    Files become readable for everyone, because safetensors writes them for their owner only.
    """
    path = FIXTURES / "MANIFEST.json"
    manifest = json.loads(path.read_text()) if path.exists() else {}
    files = {}
    for file in sorted((FIXTURES / name).rglob("*")):
        if file.is_file():
            os.chmod(file, 0o644)
            key = file.relative_to(FIXTURES).as_posix()
            files[key] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    manifest[name] = {"versions": versions, "facts": facts, "files": files}
    path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
