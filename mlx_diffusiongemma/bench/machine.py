"""Which machine and which MLX a number was measured on, in words that fit beside it."""

import os
import platform
import subprocess
from pathlib import Path

from mlx_diffusiongemma.mlx_build import find_build


def describe_machine() -> str:
    """Processor, cores, system and MLX, as far as they can be known."""
    cores, build = os.cpu_count() or 1, find_build().in_words()
    return f"{_processor()}, {cores} core{'s' * (cores != 1)}, {platform.platform()}, {build}"


def _processor() -> str:
    try:
        if platform.system() == "Darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return platform.machine()
