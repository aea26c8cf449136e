"""Which modules of a checkpoint are quantised, and how: the `quantization` table of config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_diffusiongemma.errors import ConfigError

# What `mx.quantize` accepts: mode -> (bits it allows, group sizes it allows).
_ALLOWED = {
    "affine": ((2, 3, 4, 5, 6, 8), (32, 64, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}


@dataclass(frozen=True)
class Quantization:
    """How one weight is packed: bits per value, values per group, and MLX's mode."""

    bits: int
    group_size: int
    mode: str = "affine"

    def __post_init__(self) -> None:
        if self.mode not in tuple(_ALLOWED):
            raise ConfigError(
                f"quantization mode is {self.mode!r}", hint=f"known modes: {', '.join(_ALLOWED)}"
            )
        bits, group_sizes = _ALLOWED[self.mode]
        if self.bits not in bits or self.group_size not in group_sizes:
            raise ConfigError(
                f"{self.mode} quantization has bits {self.bits!r}, group_size {self.group_size!r}",
                hint=f"it takes bits in {list(bits)} and group_size in {list(group_sizes)}",
            )

    def __str__(self) -> str:
        return f"{self.mode} with {self.bits} bits in groups of {self.group_size}"

    @property
    def has_biases(self) -> bool:
        """Affine groups have a scale and a bias; the floating-point modes have a scale only."""
        return self.mode == "affine"

    @property
    def bits_per_weight(self) -> float:
        """Bits one value takes, its share of scales and biases included."""
        scale_bits = 32 if self.has_biases else 8
        return self.bits + scale_bits / self.group_size


@dataclass(frozen=True)
class QuantizationTable:
    """The default quantisation of a checkpoint and its exceptions, by module path.

    An exception of None means that the module is not quantised.
    """

    default: Quantization | None = None
    overrides: Mapping[str, Quantization | None] = field(default_factory=dict)

    @classmethod
    def from_config(cls, values: Any) -> "QuantizationTable":
        """Read config.json's `quantization` (or `quantization_config`) object.

        An override without `mode` is affine, also where the default mode is another: that is how
        the community's converters write and read it.
        """
        if values is None or values == {}:
            return cls()
        if not isinstance(values, Mapping) or "group_size" not in values or "bits" not in values:
            method = values.get("quant_method") if isinstance(values, Mapping) else values
            raise ConfigError(
                f"config.json asks for the quantisation method {method!r}",
                hint="this runtime reads MLX's `quantization` table with `bits` and `group_size`",
            )
        default = _entry(values)
        overrides: dict[str, Quantization | None] = {}
        for path, value in values.items():
            if isinstance(value, Mapping):
                overrides[path] = _entry(value)
            elif isinstance(value, bool):
                overrides[path] = default if value else None
        return cls(default, overrides)

    def for_module(self, path: str) -> Quantization | None:
        """How the module at `path` is quantised when its tensors say that it is."""
        return self.overrides.get(path, self.default)


def _entry(values: Mapping[str, Any]) -> Quantization:
    for name in ("bits", "group_size"):
        if not isinstance(values.get(name), int):
            entry = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
            raise ConfigError(
                f"a `quantization` entry of config.json has {name} {values.get(name)!r}: {entry}",
                hint="an entry holds `bits`, `group_size` and, unless it is affine, `mode`",
            )
    mode = values.get("mode")
    return Quantization(values["bits"], values["group_size"], "affine" if mode is None else mode)
