"""The device: which dtype to compute in, how much memory there is, whether a model fits."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx

from mlx_diffusiongemma.checkpoint import TensorInfo
from mlx_diffusiongemma.chips import family
from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.errors import ConfigError, MemoryNeedError
from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.model.diffusion_gemma import PREFILL_CHUNK
from mlx_diffusiongemma.recipes import RECIPES, Recipe, class_sizes

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
TF32_SWITCH = "MLX_ENABLE_TF32"  # MLX's environment variable; not 0, its default, allows TF32
DEFAULT_CONTEXT = 4096  # tokens that the memory check makes room for when none are asked

# Arrays over canvas and vocabulary that a step holds at its peak. In plain MLX they are float32:
# logits, those of the step before, their logarithms and probabilities, the draw. Measured on a CPU:
# 4.0 in bfloat16, 4.5 in float32.
_PLAIN_STEP_ARRAYS = 4.5
# With our kernels they are in the compute dtype: logits, those of the step before and two halves of
# probabilities. Counted, by the ledger; nothing else it writes is that wide.
_KERNEL_STEP_ARRAYS = 3
# And Metal keeps what layers have written until a command buffer ends: after 400 x 2^20 elements by
# `chips`, which is three layers of the released model, or what is left of one and three more.
_LAYERS_KEPT = 4
_WITHOUT_BFLOAT16 = (1, 2)  # families of Apple chips
_FIRST_BFLOAT16 = 8  # major compute capability of the first NVIDIA GPUs that calculate in it
# What to advise when a model does not fit, the closest to the original first.
_SMALLER = ("8bit", "mixed-4-8", "mixed-3-8", "mixed-2-8")


def compute_dtype(config: ModelConfig, name: str | None) -> mx.Dtype:
    """The dtype to compute in: `name` when given, else what suits the device.

    On a GPU that is what the checkpoint says. On the CPU back-end it is float32: quantised
    products are many times slower in the half types there, and `mx.gather_mm` has no others. So it
    is instead of bfloat16 on an NVIDIA GPU that cannot calculate in it. Apple's M1 and M2 emulate
    bfloat16, slowly: there it is float16, as long as the activations fit (`range_check`).
    """
    check_dtype_name(name)
    if name is None:
        name = config.dtype
        if on_cpu() or (name == "bfloat16" and not has_bfloat16()):
            name = "float32"
        elif narrows(config):
            name = "float16"
    return DTYPES[name]


def narrows(config: ModelConfig) -> bool:
    """Whether this device computes a bfloat16 model in float16 unless it is told otherwise."""
    return config.dtype == "bfloat16" and not on_cpu() and emulates_bfloat16()


def emulates_bfloat16() -> bool:
    """Whether the device only emulates bfloat16: Apple's M1 and M2."""
    return family(str(mx.device_info().get("device_name", ""))) in _WITHOUT_BFLOAT16


def wire_memory() -> None:
    """Let Metal keep as much of MLX's memory in place as it recommends. Once in a process.

    Raised and lowered for every request, the limit would have all buffers filed again.
    """
    limit = mx.device_info().get("max_recommended_working_set_size")
    if limit is not None and not on_cpu():
        _wire(int(limit))


@cache
def _wire(limit: int) -> None:
    mx.set_wired_limit(limit)


def has_bfloat16() -> bool:
    """Whether the device calculates in bfloat16: not NVIDIA GPUs before compute capability 8."""
    major = mx.device_info().get("compute_capability_major", _FIRST_BFLOAT16)
    return int(major) >= _FIRST_BFLOAT16


def check_dtype_name(name: str | None) -> None:
    """ConfigError when `name` is neither None nor the name of a dtype to compute in."""
    if name is not None and name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}", hint=f"dtype must be one of {', '.join(DTYPES)}")


def keep_float32_exact() -> None:
    """Have float32 products computed as such in this process; GPUs that have TF32 round to it.

    MLX reads the environment at its first product, so this comes before that. A value that is set
    already stays.
    """
    os.environ.setdefault(TF32_SWITCH, "0")


def on_cpu() -> bool:
    """True when MLX computes on the CPU."""
    return mx.default_device().type == mx.DeviceType.cpu


def available_memory() -> int:
    """Bytes a model may take: what Metal recommends, the GPU's own memory, or the RAM.

    Of an NVIDIA GPU's memory that is what is free or ours: other programs have some. Of the RAM it
    is what this process may have, where a control group limits it.
    """
    if not on_cpu():
        info = mx.device_info()
        if "free_memory" in info:
            ours = mx.get_active_memory() + mx.get_cache_memory()
            return min(int(info["free_memory"]) + ours, int(info["total_memory"]))
        for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if key in info:
                return int(info[key])
    return min([physical_memory(), *cgroup_limits()])


def physical_memory() -> int:
    """Bytes of RAM that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_limits(root: Path = Path("/")) -> list[int]:
    """Memory limits in bytes of this process's control groups (v1 and v2) and their parents.

    Empty where there are none: no limit, or not Linux. A v1 group without a limit has one above
    any memory.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for group in groups:  # "4:memory:/docker/1f" in v1, "0::/user.slice" in v2
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        levels = (folder, *folder.parents)
        files += [level / name for level in levels if level.is_relative_to(base)]
    return [limit for limit in map(_read_limit, files) if limit is not None]


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # v2 writes "max" for no limit


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model needs while it runs; `item_size` is that of the compute dtype."""

    weights: int
    caches: int
    working: int
    item_size: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.caches + self.working


def memory_need(
    config: ModelConfig, tensors: Iterable[TensorInfo], dtype: mx.Dtype, context: int
) -> MemoryNeed:
    """What a model needs with `context` tokens in its caches, computing in `dtype`.

    A context longer than the model's own counts as that one. ConfigError when it is no length.
    """
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ConfigError(
            f"max_context is {context!r}", hint="max_context must be an integer of 1 or more"
        )
    context = min(context, config.max_position_embeddings)
    item = dtype.size
    caches = 0
    for layer in config.layers:
        tokens = min(context, config.sliding_window) if layer.is_sliding else context
        rows = layer.num_key_value_heads * layer.head_dim
        caches += 2 * rows * (tokens + config.canvas_length) * item
    return MemoryNeed(
        weights=sum(info.memory_bytes(item) for info in tensors),
        caches=caches,
        working=_working_bytes(config, item, context),
        item_size=item,
    )


def _working_bytes(config: ModelConfig, item: int, context: int) -> int:
    """The larger of the two passes' temporary arrays, those that matter."""
    step = _step_bytes(config, item, context)
    # A chunk of the prompt in a full layer: attention scores, which no fused kernel avoids for its
    # head size; the queries in eight forms; the experts' inputs and outputs.
    chunk = min(context, PREFILL_CHUNK)
    heads = config.num_attention_heads
    scores = heads * chunk * context
    queries = 8 * chunk * heads * max(layer.head_dim for layer in config.layers)
    routed = 2 * chunk * config.top_k_experts * config.hidden_size
    return max(step, (scores + queries + routed) * item)


def kernels_run() -> bool:
    """Whether our Metal kernels run here, but for those that fail their trial."""
    return dispatch.on_metal() and os.environ.get(dispatch.SWITCH) != "0"


def _step_bytes(config: ModelConfig, item: int, context: int) -> int:
    wide = config.canvas_length * config.vocab_size
    if not kernels_run():
        return int(_PLAIN_STEP_ARRAYS * 4 * wide)
    layers = [written_by(config, layer, context) for layer in config.layers]
    runs = (layers[first : first + _LAYERS_KEPT] for first in range(len(layers)))
    return item * (_KERNEL_STEP_ARRAYS * wide + max(map(sum, runs)))


def written_by(config: ModelConfig, layer: LayerConfig, context: int) -> int:
    """How many numbers a layer writes in a denoising step, at most.

    Attention's scores and weights, heads in eight forms; inputs, gates and outputs of the experts
    and of the dense MLP; the residual stream in eight forms.
    """
    seen = min(context, config.sliding_window) if layer.is_sliding else context
    heads = config.num_attention_heads
    scores = 2 * heads * (seen + config.canvas_length)
    routed = config.top_k_experts * (2 * config.hidden_size + 3 * config.moe_intermediate_size)
    dense = 3 * config.intermediate_size + 8 * config.hidden_size
    return config.canvas_length * (scores + 8 * heads * layer.head_dim + routed + dense)


def rows_that_fit(config: ModelConfig, need: MemoryNeed, available: int) -> int:
    """How many answers can be written at once in `available` bytes; at least one.

    `need` is that of one. Another one has caches of its own and keeps one array over canvas and
    vocabulary, its logits; the temporary ones are made for one answer at a time.
    """
    item = need.item_size if kernels_run() else 4
    another = need.caches + item * config.canvas_length * config.vocab_size
    return 1 + max(available - need.total, 0) // another


def check_memory(config: ModelConfig, need: MemoryNeed, available: int) -> None:
    """MemoryNeedError when the need is above what there is; it names a recipe that would fit."""
    if need.total <= available:
        return
    room = available - need.caches - need.working
    sizes = {name: recipe_bytes(RECIPES[name], config, need.item_size) for name in _SMALLER}
    fitting = next((name for name, size in sizes.items() if size <= room), None)
    advice = f"the recipe `{fitting}` would fit" if fitting else "no recipe makes it fit here"
    raise MemoryNeedError(
        f"this model needs {_gb(need.total)} (weights {_gb(need.weights)}, caches "
        f"{_gb(need.caches)}, work {_gb(need.working)}) and this device has {_gb(available)}",
        hint=f"{advice}; `--force` loads it anyway",
    )


def check_download(total_bytes: int) -> None:
    """MemoryNeedError when the files of a model alone are larger than the memory it may take."""
    available = available_memory()
    if total_bytes > available:
        raise MemoryNeedError(
            f"this model's files take {_gb(total_bytes)} and this device has {_gb(available)}",
            hint="choose a smaller conversion of it; `--force` downloads it anyway",
        )


def recipe_bytes(recipe: Recipe, config: ModelConfig, item_size: int) -> float:
    """Bytes of the loaded text weights under a recipe; norms and scalars are too few to count.

    More than on disk when the compute dtype is wider than the recipe's.
    """
    total = 0.0
    for name, size in class_sizes(config).items():
        how = recipe.how.get(name)
        bits = 8.0 * item_size
        if how is not None:
            extra = 2 * bits / how.group_size  # a scale and a bias, cast when they are loaded
            bits = how.bits + extra if how.has_biases else how.bits_per_weight
        total += size * bits / 8
    return total


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
