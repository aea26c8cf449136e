"""One conversion in a process of its own; prints peak memory and time as JSON for `convert.py`.

usage: convert_worker.py SOURCE OUTPUT RECIPE
"""

import json
import resource
import sys
from pathlib import Path

from mlx_diffusiongemma.convert.conversion import convert_checkpoint


def main(source: str, output: str, recipe: str) -> None:
    """Convert, then print what it took."""
    report = convert_checkpoint(source, output, recipe)
    written = sum(path.stat().st_size for path in Path(output).iterdir())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    numbers = {
        "peak_bytes": report.peak_memory,
        "seconds": report.seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "bytes": written,
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
