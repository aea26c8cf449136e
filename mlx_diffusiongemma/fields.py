"""Fields of a checkpoint's JSON, checked as they are read; ConfigError names field and value.

An absent field and a null one are the same: both take the default.
"""

import sys
from collections.abc import Mapping
from typing import Any

from mlx_diffusiongemma.errors import ConfigError

_MAX = sys.float_info.max
LARGEST = 2**31 - 1  # of an array's dimension in MLX


def integer(
    values: Mapping[str, Any], name: str, default: int | None = None, *, most: int = LARGEST
) -> int:
    """An integer from 1 to `most`; required when there is no default."""
    value = values.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(
            f"the checkpoint says {name} {value!r}",
            hint=f"{name} must be an integer from 1 to {most}",
        )
    return value


def number(values: Mapping[str, Any], name: str, default: float) -> float:
    """A finite number above 0."""
    value = values.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX:
        raise ConfigError(
            f"the checkpoint says {name} {value!r}",
            hint=f"{name} must be a finite number above 0",
        )
    return float(value)


def choice(values: Mapping[str, Any], name: str, allowed: tuple, *, default: Any) -> Any:
    """One of the values in `allowed`."""
    value = values.get(name)
    value = default if value is None else value
    if value not in allowed:
        known = ", ".join(repr(known) for known in allowed)
        raise ConfigError(
            f"the checkpoint says {name} {value!r}", hint=f"{name} must be one of {known}"
        )
    return value


def token_ids(values: Mapping[str, Any], name: str, default: int | None = None) -> frozenset[int]:
    """One token id or a list of them; none when there is no default."""
    value = values.get(name)
    value = default if value is None else value
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ConfigError(
            f"the checkpoint says {name} {value!r}",
            hint=f"{name} must be a token id or a list of token ids",
        )
    return frozenset(ids)


def section(values: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A nested object, or None."""
    value = values.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise ConfigError(f"the checkpoint says {name} {value!r}", hint=f"{name} must be a JSON object")
