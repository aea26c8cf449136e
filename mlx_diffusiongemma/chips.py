"""Apple's chips: which one this is, and what MLX should be told before it is loaded.

MLX ends a command buffer after some operations or megabytes. The tensors of a large model fill one
with a few operations, and on M1 to M4 each costs time; larger ones cost memory that is held a
little longer. Whoever sets the variables has the last word.
"""

import ctypes
import re
import sys
from collections.abc import MutableMapping

_APPLE = re.compile(r"Apple M(\d+)\b")
_LAST_WITH_COSTLY_BUFFERS = 4  # M5 gains nothing, by what others have measured
# "MB" is MLX's word; it counts elements, in units of 2^20.
COMMAND_BUFFERS = {"MLX_MAX_OPS_PER_BUFFER": "1000", "MLX_MAX_MB_PER_BUFFER": "400"}


def family(name: str) -> int | None:
    """The number of an Apple chip's family, 1 for "Apple M1 Max"; None for another device."""
    match = _APPLE.search(name)
    return int(match[1]) if match else None


def chip_name() -> str:
    """What macOS calls the chip; empty on another system. MLX is not loaded for it."""
    if sys.platform != "darwin":
        return ""
    ask = ctypes.CDLL(None).sysctlbyname
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = ask(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode(errors="replace")


def prepare_mlx(environment: MutableMapping[str, str], name: str) -> None:
    """Set what MLX reads from the environment when it is first used, unless it is set."""
    number = family(name)
    if number is not None and number <= _LAST_WITH_COSTLY_BUFFERS:
        for variable, value in COMMAND_BUFFERS.items():
            environment.setdefault(variable, value)
