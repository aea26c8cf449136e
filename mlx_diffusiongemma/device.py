"""The device: which dtype to compute in, how much memory there is, whether a model fits."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.errors import ConfigError, MemoryNeedError

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
DEFAULT_CONTEXT = 4096  # tokens that the memory check makes room for when none are asked

# Bits per weight of the experts and of everything else, scales and biases included.
_RECIPES = (
    ("8bit", 8.5, 8.5),
    ("mixed-4-8", 4.5, 8.5),
    ("mixed-3-8", 3.5, 8.5),
    ("mixed-2-8", 2.5, 8.5),
)


def compute_dtype(config: ModelConfig, name: str | None) -> mx.Dtype:
    """The dtype to compute in: `name` when given, else what suits the device.

    On a GPU that is what the checkpoint says. On the CPU back-end it is float32: quantised
    products are many times slower in the half types there, and `mx.gather_mm` has no others.
    """
    if name is None:
        name = "float32" if on_cpu() else config.dtype
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}", hint=f"dtype must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


def on_cpu() -> bool:
    """True when MLX computes on the CPU."""
    return mx.default_device().type == mx.DeviceType.cpu


def available_memory() -> int:
    """Bytes a model may take: what Metal recommends, the GPU's own memory, or the RAM."""
    if not on_cpu():
        info = mx.device_info()
        for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if key in info:
                return int(info[key])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model needs while it runs."""

    weights: int
    caches: int
    working: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.caches + self.working


def memory_need(
    config: ModelConfig, tensors: Iterable[TensorInfo], dtype: mx.Dtype, context: int
) -> MemoryNeed:
    """What a model needs with `context` tokens in its caches, computing in `dtype`."""
    item = dtype.size
    weights = sum(
        info.nbytes if info.dtype.startswith("U") else info.size * item for info in tensors
    )
    caches = 0
    for layer in config.layers:
        tokens = min(context, config.sliding_window) if layer.is_sliding else context
        rows = layer.num_key_value_heads * layer.head_dim
        caches += 2 * rows * (tokens + config.canvas_length) * item
    # A step holds about four float32 arrays over the vocabulary: logits, scaled logits,
    # probabilities and the draw.
    working = 4 * 4 * config.canvas_length * config.vocab_size
    return MemoryNeed(weights, caches, working)


def check_memory(config: ModelConfig, need: MemoryNeed, available: int) -> None:
    """MemoryNeedError when the need is above what there is; it names a recipe that would fit."""
    if need.total <= available:
        return
    room = available - need.caches - need.working
    fitting = next((name for name, size in _recipe_sizes(config) if size <= room), None)
    advice = f"the recipe `{fitting}` would fit" if fitting else "no recipe makes it fit here"
    raise MemoryNeedError(
        f"this model needs {_gb(need.total)} (weights {_gb(need.weights)}, caches "
        f"{_gb(need.caches)}, work {_gb(need.working)}) and this device has {_gb(available)}",
        hint=f"{advice}; `--force` loads it anyway",
    )


def _recipe_sizes(config: ModelConfig) -> Iterable[tuple[str, float]]:
    layers, hidden = len(config.layers), config.hidden_size
    experts = 3 * layers * config.num_experts * hidden * config.moe_intermediate_size
    rest = config.vocab_size * hidden + 3 * (layers + 1) * hidden * config.intermediate_size
    for layer in config.layers:
        heads = 2 * config.num_attention_heads + (2 if layer.is_sliding else 1) * (
            layer.num_key_value_heads
        )
        rest += hidden * layer.head_dim * heads
    for name, expert_bits, other_bits in _RECIPES:
        yield name, (experts * expert_bits + rest * other_bits) / 8


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
