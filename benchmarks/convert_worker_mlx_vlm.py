"""One conversion by mlx-vlm, run by an interpreter that has it; prints JSON for `convert.py`.

usage: convert_worker_mlx_vlm.py SOURCE OUTPUT RECIPE
"""

import json
import resource
import sys
import time
from pathlib import Path

from mlx_vlm.convert import convert

# Our recipe -> the arguments that come closest to it.
ARGUMENTS = {
    "mixed-4-8": {"q_bits": 4, "q_group_size": 64},
    "8bit": {"q_bits": 8, "q_group_size": 64},
    "mxfp4": {"q_bits": 4, "q_group_size": 32, "q_mode": "mxfp4"},
}


def main(source: str, output: str, recipe: str) -> None:
    """Convert, then print what it took."""
    started = time.perf_counter()
    convert(source, output, quantize=True, **ARGUMENTS[recipe])
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss
    written = sum(path.stat().st_size for path in Path(output).iterdir())
    numbers = {
        "peak_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "bytes": written,
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
