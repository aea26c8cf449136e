"""The values that a setting may have, and the sentence that says so."""

import math
import sys
from dataclasses import dataclass

from mlx_diffusiongemma.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The values one setting may have; `low` is one of them unless `exclusive`, `high` if `closed`.

    An open `high` is written out, a closed one is part of a sentence.
    """

    low: float
    integer: bool = False
    exclusive: bool = False
    high: float = math.inf
    closed: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError when the value is none of them."""
        kind = int if self.integer else (int, float)
        if not isinstance(value, bool) and isinstance(value, kind):
            above = value > self.low if self.exclusive else value >= self.low
            is_finite = self.integer or value <= sys.float_info.max  # an int may be too large
            if above and is_finite and (value < self.high or self.closed and value == self.high):
                return
        raise ConfigError(f"{name} is {value!r}", hint=f"{name} must be {self}")

    def __str__(self) -> str:
        noun = "an integer" if self.integer else "a finite number"
        start = f"above {self.low:g}" if self.exclusive else f"of {self.low:g} or more"
        if self.high == math.inf:
            return f"{noun} {start}"
        return f"{noun} {start} and {'at most' if self.closed else 'below'} {self.high}"
