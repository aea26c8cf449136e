"""Traces as files: safetensors, with the manifest as JSON in the file's metadata.

    {"format": "mlx-diffusiongemma parity trace", "version": "1", "manifest": "{...}",
     "digest": "SHA-256 of the manifest and of every array"}

What is read is held against the manifest, array by array: a file that was cut short, changed or
written by a newer program is one clear error.
"""

import hashlib
import os
import secrets
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mlx_diffusiongemma.errors import TraceError
from mlx_diffusiongemma.parity.layout import Spec, expected_arrays
from mlx_diffusiongemma.parity.trace import Arrays, Manifest, Trace

FORMAT = "mlx-diffusiongemma parity trace"
VERSION = 1
_AGAIN = "copy the file again, or record the trace again"
_SHOWN = 3  # names in one error


def write_trace(path: Path, trace: Trace) -> int:
    """Write a trace and return the bytes of the file, which appears whole or not at all.

    TraceError when the arrays are not those of the manifest, or not finite numbers.
    """
    check_arrays(trace, "the recording")
    manifest = trace.manifest.to_json()
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "manifest": manifest,
        "digest": _digest(manifest, trace.arrays),
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in trace.arrays.items()}
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            size = file.write(save(arrays, metadata))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return size


def read_trace(path: Path) -> Trace:
    """Read a trace; TraceError says in one line what is wrong with a file that is none."""
    path.open("rb").close()  # says better than safetensors what is wrong with a path
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            manifest = _manifest(path, metadata)
            names = list(file.keys())
            arrays = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise TraceError(
            f"`{path}` is no trace, or it was cut short: {error}", hint=_AGAIN
        ) from None
    trace = Trace(manifest, arrays)
    check_arrays(trace, f"`{path}`")
    # The first files had no digest.
    if metadata.get("digest", digest := _digest(metadata["manifest"], arrays)) != digest:
        raise TraceError(f"`{path}` is not as it was written: its digest differs", hint=_AGAIN)
    return trace


def _digest(manifest: str, arrays: Arrays) -> str:
    """Of every name, dtype, shape and byte, whatever the order in the file."""
    digest = hashlib.sha256(manifest.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name} {array.dtype} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _manifest(path: Path, metadata: dict[str, str]) -> Manifest:
    if metadata.get("format") != FORMAT:
        raise TraceError(
            f"`{path}` is no parity trace", hint="`dgemma-mlx parity record` writes them"
        )
    version = metadata.get("version", "")
    if version != str(VERSION):
        newer = version.isdecimal() and int(version) > VERSION
        raise TraceError(
            f"`{path}` has version {version!r} of the layout, and this program reads {VERSION}",
            hint="update mlx-diffusiongemma" if newer else "record the trace again",
        )
    return Manifest.from_json(metadata.get("manifest", ""))


def check_arrays(trace: Trace, what: str) -> None:
    """TraceError when arrays are missing, unknown, misshapen or hold no finite numbers."""
    expected = expected_arrays(trace.manifest)
    problems = [f"`{name}` is missing" for name in expected.keys() - trace.arrays.keys()]
    problems += [f"`{name}` is unknown" for name in trace.arrays.keys() - expected.keys()]
    for name, array in trace.arrays.items():
        found = Spec(str(array.dtype), array.shape)
        if name in expected and found != expected[name]:
            problems.append(f"`{name}` is {_told(found)}, not {_told(expected[name])}")
    if problems:
        raise TraceError(f"{what} is damaged: {_first(sorted(problems))}", hint=_AGAIN)
    architecture = trace.manifest.model.architecture
    bad = []
    for name, array in trace.arrays.items():
        leaf = name.rpartition("/")[2]
        limit = architecture.num_experts if leaf == "experts" else architecture.vocab_size
        is_id = array.dtype == np.int32 and leaf != "steps"
        if is_id and array.size and not 0 <= array.min() <= array.max() < limit:
            bad.append(f"`{name}`")
    if bad:
        raise TraceError(f"{what} holds ids out of range: {_first(sorted(bad))}", hint=_AGAIN)
    for case in trace.manifest.generations:
        counts = trace.arrays[f"generations/{case.name}/steps"]
        if (counts < 1).any() or counts.sum() != case.steps:
            raise TraceError(
                f"{what} is damaged: generation {case.name!r} has {case.steps} steps, and canvases "
                f"of {counts.tolist()[:_SHOWN]}",
                hint=_AGAIN,
            )
    bad = [
        f"`{name}`"
        for name, array in trace.arrays.items()
        if array.dtype == np.float32 and not np.isfinite(array).all()
    ]
    if bad:
        raise TraceError(
            f"{what} holds numbers that are not finite: {_first(sorted(bad))}",
            hint="the model that was recorded is damaged, or its dtype too narrow for it",
        )


def _told(spec: Spec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def _first(problems: list[str]) -> str:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
