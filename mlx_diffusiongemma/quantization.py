"""Which modules of a checkpoint are quantised, and how: the `quantization` table of config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_diffusiongemma.errors import ConfigError

# What `mx.quantize` accepts: mode -> (bits it allows, group sizes it allows).
_ALLOWED = {
    "affine": ({2, 3, 4, 5, 6, 8}, {32, 64, 128}),
    "mxfp4": ({4}, {32}),
    "mxfp8": ({8}, {32}),
    "nvfp4": ({4}, {16}),
}


@dataclass(frozen=True)
class Quantization:
    """How one weight is packed: bits per value, values per group, and MLX's mode."""

    bits: int
    group_size: int
    mode: str = "affine"

    def __post_init__(self) -> None:
        if self.mode not in _ALLOWED:
            raise ConfigError(
                f"quantization mode is {self.mode!r}", hint=f"known modes: {', '.join(_ALLOWED)}"
            )
        bits, group_sizes = _ALLOWED[self.mode]
        if self.bits not in bits or self.group_size not in group_sizes:
            raise ConfigError(
                f"{self.mode} quantization has bits {self.bits!r}, group_size {self.group_size!r}",
                hint=f"it takes bits in {sorted(bits)} and group_size in {sorted(group_sizes)}",
            )

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
    def from_config(cls, values: Mapping[str, Any] | None) -> "QuantizationTable":
        """Read config.json's `quantization` (or `quantization_config`) object.

        An override without `mode` is affine, also where the default mode is another: that is how
        the community's converters write and read it.
        """
        if not values:
            return cls()
        if "group_size" not in values or "bits" not in values:
            method = values.get("quant_method", "unknown")
            raise ConfigError(
                f"config.json asks for the quantisation method {method!r}",
                hint="this runtime reads MLX's `quantization` table with `bits` and `group_size`",
            )
        default = _entry(values, values.get("mode", "affine"))
        overrides: dict[str, Quantization | None] = {}
        for path, value in values.items():
            if isinstance(value, Mapping):
                overrides[path] = _entry(value, value.get("mode", "affine"))
            elif isinstance(value, bool):
                overrides[path] = default if value else None
        return cls(default, overrides)

    def for_module(self, path: str) -> Quantization | None:
        """How the module at `path` is quantised when its tensors say that it is."""
        return self.overrides.get(path, self.default)


def _entry(values: Mapping[str, Any], mode: str) -> Quantization:
    try:
        return Quantization(int(values["bits"]), int(values["group_size"]), mode)
    except KeyError as missing:
        raise ConfigError(
            f"a `quantization` entry of config.json lacks {missing}: {dict(values)}",
            hint="an entry holds `bits`, `group_size` and, unless it is affine, `mode`",
        ) from None
