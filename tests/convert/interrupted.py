"""Convert in a process that kills itself with signal 9 before its n-th change of the disk.

usage: interrupted.py SOURCE OUTPUT N    (N = 0: not killed; prints how many changes there were)
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convert_plans import plan_of

from mlx_diffusiongemma.convert.stream import run

CHANGES = ("write", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "open")


class Counter:
    """Counts changes, and kills this process before the one it was told."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0

    def before(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **named)

        return counted


def main(source: str, output: str, fatal: int) -> None:
    plan = plan_of(Path(source))
    counter = Counter(fatal)
    for name in CHANGES:
        setattr(os, name, counter.before(getattr(os, name)))
    run(plan, Path(output), resume=True, finish=lambda folder, _: _write_config(folder))
    print(counter.count)


def _write_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
