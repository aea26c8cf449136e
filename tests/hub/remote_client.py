"""A process that converts from and uploads to the Hub at HF_ENDPOINT; one JSON call on stdin.

A process of its own, because huggingface_hub reads its environment only once.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from mlx_diffusiongemma import hub_remote
from mlx_diffusiongemma.convert.conversion import convert_checkpoint
from mlx_diffusiongemma.convert.records import Progress
from mlx_diffusiongemma.errors import DGemmaError


def disk_bytes(*folders: Path) -> int:
    """Bytes that the files of some folders take on disk; holes and links take none."""
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    return sum(512 * path.stat().st_blocks for path in files if not path.is_symlink())


def convert(call: dict[str, Any]) -> dict[str, Any]:
    """Convert in `low_disk`; says how much disk the source's files took at most.

    With `stop` it is interrupted when this part is done.
    """
    output, cache = Path(call["output"]), Path(os.environ["HF_HOME"])
    working = output.with_name(f".{output.name}.source")
    most = 0

    def watch(state: Progress) -> None:
        nonlocal most
        most = max(most, disk_bytes(cache, working))
        if state.done_bytes >= call.get("stop", 2) * state.total_bytes:
            raise KeyboardInterrupt

    settings = {"progress": watch, "low_disk": True, "max_shard_bytes": 100_000}
    report = convert_checkpoint(call["name"], output, call["recipe"], **settings)
    left = sorted(path.name for path in cache.rglob("*.safetensors"))
    return {"most": most, "tensors": report.source_tensors, "left": left, "work": working.exists()}


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    try:
        if "upload" in asked:
            answer = {"page": hub_remote.upload(Path(asked["upload"]), asked["name"])}
        else:
            answer = convert(asked)
    except KeyboardInterrupt:
        answer = {"stopped": True}
    except DGemmaError as error:
        answer = {"kind": type(error).__name__, "error": str(error), "hint": error.hint}
    print(json.dumps(answer))
