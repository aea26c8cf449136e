"""Recipes: which part of the model gets how many bits, as named tables with their reason and cost.

A recipe names a `Quantization` for each class of tensors; a class at None stays in the recipe's
dtype. `convert` turns a recipe into a plan, `device` uses the same table to say what would fit.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.quantization import Quantization

TensorClass = Literal[
    "embedding",
    "attention",
    "dense_mlp",
    "experts",
    "router",
    "self_conditioning",
    "norms",
    "vision",
]
TENSOR_CLASSES: tuple[TensorClass, ...] = get_args(TensorClass)
# What people read, wherever classes are told.
CLASS_LABELS: Mapping[TensorClass, str] = {
    "embedding": "embedding",
    "attention": "attention",
    "dense_mlp": "dense MLP",
    "experts": "experts",
    "router": "router",
    "self_conditioning": "self-conditioning",
    "norms": "norms and scalars",
    "vision": "vision",
}
# What a recipe may pack. The router is 0.04 % of the weights and decides which experts run.
PACKABLE_CLASSES: tuple[TensorClass, ...] = (
    "embedding",
    "attention",
    "dense_mlp",
    "experts",
    "router",
    "self_conditioning",
)
DTYPES = ("bfloat16", "float16")

# First match wins. What is left over are norms and scalars.
_CLASSES: tuple[tuple[str, TensorClass], ...] = (
    (r"model\.encoder\.(vision_tower|embed_vision)\..+", "vision"),
    (r"model\.decoder\.embed_tokens\..+", "embedding"),
    (r".+\.self_attn\.[qkvo]_proj\..+", "attention"),
    (r".+\.experts\..+", "experts"),
    (r".+\.router\..+", "router"),
    (r"model\.decoder\.self_conditioning\..+_proj\..+", "self_conditioning"),
    (r".+\.mlp\.(gate|up|down)_proj\..+", "dense_mlp"),
)


def tensor_class(parameter: str) -> TensorClass:
    """What the tensor of that name is part of."""
    for pattern, found in _CLASSES:
        if re.fullmatch(pattern, parameter):
            return found
    return "norms"


@dataclass(frozen=True)
class Recipe:
    """How to convert a model.

    Attributes:
        name: what `--recipe` takes, or what was asked for instead.
        how: class -> how its matrices are packed; None or absent: not at all.
        reason, cost: one sentence each, for people, true of any model; no cost where none is known.
        fit: the Mac that the released model needs with it; empty where nobody says.
        dtype: of everything that is not packed, and of scales and biases.
        overrides: (pattern, how) pairs that come before `how`; first match wins. A pattern is a
            class, a glob over module paths, or `re:` and a regular expression for the whole path.
        search: choose scales and biases by least squares instead of from minimum and maximum.
    """

    name: str
    how: Mapping[TensorClass, Quantization | None]
    reason: str
    cost: str
    fit: str = ""
    dtype: str = "bfloat16"
    overrides: tuple[tuple[str, Quantization | None], ...] = ()
    search: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"dtype of a conversion is {self.dtype!r}", hint=f"dtype is {' or '.join(DTYPES)}"
            )
        for pattern, _ in self.overrides:
            _check_pattern(pattern)

    def for_module(self, path: str) -> Quantization | None:
        """How the weight of the module at `path` is packed; None: it is not."""
        kind = tensor_class(f"{path}.weight")
        for pattern, how in self.overrides:
            if matches(pattern, path):
                return how
        return self.how.get(kind)


def matches(pattern: str, path: str) -> bool:
    """Whether the pattern of an override means the module at `path`; see `Recipe.overrides`."""
    if pattern in TENSOR_CLASSES:
        return tensor_class(f"{path}.weight") == pattern
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], path) is not None
    return fnmatchcase(path, pattern)


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise ConfigError(
            "an override has an empty pattern", hint="name a module, such as `experts`"
        )
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise ConfigError(f"`{pattern}` is no regular expression: {error}") from None


def _table(
    experts: Quantization | None, rest: Quantization | None, router: Quantization | None = None
) -> Mapping[TensorClass, Quantization | None]:
    return {
        "embedding": rest,
        "attention": rest,
        "dense_mlp": rest,
        "experts": experts,
        "router": router,
        "self_conditioning": rest,
    }


def _affine(bits: int, group_size: int = 64) -> Quantization:
    return Quantization(bits, group_size)


DEFAULT_RECIPE = "mixed-4-8"
# Errors in `cost` are those of the demo's matrices, and of normal weights in general. `fit` counts
# 4,096 tokens of context and what macOS gives the GPU: two thirds of the memory, from 36 GB on
# three quarters.
_MIXED = "experts are most of the weights and a token meets few of them, so they bear fewer bits"
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "bf16",
            _table(None, None),
            "the source's numbers in MLX's names, nothing packed",
            "no loss; every step reads two to three times the bytes of a packed model",
            "a Mac with 96 GB",
        ),
        Recipe(
            "8bit",
            _table(_affine(8), _affine(8)),
            "closest to the source's numbers that half the memory holds",
            "weights are off by 0.7 % (rms)",
            "a Mac with 36 GB",
        ),
        Recipe(
            "mixed-4-8",
            _table(_affine(4), _affine(8)),
            f"{_MIXED}: 4 bits; what every token passes through keeps 8, the router stays as it is",
            "experts are off by 9 % (rms)",
            "a Mac with 24 GB",
        ),
        Recipe(
            "mixed-3-8",
            _table(_affine(3), _affine(8)),
            f"{_MIXED}: 3 bits, and 8 for the rest",
            "experts are off by 19 % (rms); nobody has measured what that does to answers",
            "a Mac with 24 GB, and room for a long context",
        ),
        Recipe(
            "mixed-2-8",
            _table(_affine(2), _affine(8)),
            f"{_MIXED}: 2 bits, and 8 for the rest",
            "experts are off by 39 % (rms), less with --search: a last resort",
            "a Mac with 16 GB, and nothing to spare",
        ),
        Recipe(
            "mxfp4",
            _table(Quantization(4, 32, "mxfp4"), _affine(8)),
            "experts in the 4-bit float format MXFP4 (4.25 bits), the rest at 8 bits",
            "experts are off by 12 % (rms), more than in mixed-4-8: scales are powers of two",
            "a Mac with 24 GB",
        ),
        Recipe(
            "mxfp8",
            _table(Quantization(8, 32, "mxfp8"), Quantization(8, 32, "mxfp8")),
            "everything in the 8-bit float format MXFP8 (8.25 bits)",
            "weights are off by 2.7 % (rms), four times as far as in 8bit",
            "a Mac with 36 GB",
        ),
        Recipe(
            "nvfp4",
            _table(Quantization(4, 16, "nvfp4"), _affine(8)),
            "experts in the 4-bit float format NVFP4: groups of 16 with an 8-bit float scale",
            "experts are off by 9.5 % (rms), at the size of mixed-4-8",
            "a Mac with 24 GB",
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; ConfigError when there is none."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}", hint=f"recipes: {', '.join(RECIPES)}")
    return RECIPES[name]


def uniform_recipe(how: Quantization) -> Recipe:
    """Everything that can be packed, in one way; the router stays as it is."""
    name = f"{how.bits} bits, groups of {how.group_size}, {how.mode}"
    return Recipe(name, _table(how, how), "one width for everything but the router", cost="")


def with_changes(
    recipe: Recipe,
    *,
    dtype: str | None = None,
    overrides: tuple[tuple[str, Quantization | None], ...] = (),
    search: bool | None = None,
) -> Recipe:
    """The recipe with some things said otherwise; its name says so."""
    name = f"{recipe.name} with changes" if overrides else recipe.name
    return replace(
        recipe,
        name=name,
        dtype=recipe.dtype if dtype is None else dtype,
        overrides=(*overrides, *recipe.overrides),
        search=recipe.search if search is None else search,
    )


def class_sizes(config: ModelConfig) -> dict[TensorClass, int]:
    """How many weights each packable class of a model has; norms and scalars are too few."""
    layers, hidden = len(config.layers), config.hidden_size
    attention = 0
    for layer in config.layers:
        shared = 1 if layer.shares_key_and_value else 2
        heads = 2 * config.num_attention_heads + shared * layer.num_key_value_heads
        attention += hidden * layer.head_dim * heads
    return {
        "embedding": config.vocab_size * hidden,
        "attention": attention,
        "dense_mlp": 3 * layers * hidden * config.intermediate_size,
        "experts": 3 * layers * config.num_experts * hidden * config.moe_intermediate_size,
        "router": layers * config.num_experts * hidden,
        "self_conditioning": 3 * hidden * config.intermediate_size,
    }


# `class_sizes` of google/diffusiongemma-26B-A4B-it.
RELEASED_SIZES: Mapping[TensorClass, int] = {
    "embedding": 738_197_504,
    "attention": 1_110_179_840,
    "dense_mlp": 535_265_280,
    "experts": 22_837_985_280,
    "router": 10_813_440,
    "self_conditioning": 17_842_176,
}


def weight_bytes(recipe: Recipe, sizes: Mapping[TensorClass, int] = RELEASED_SIZES) -> int:
    """Bytes of the text weights under a recipe, its overrides for single modules left aside."""
    return round(sum(_class_bytes(recipe, sizes)))


def _class_bytes(recipe: Recipe, sizes: Mapping[TensorClass, int]) -> Iterator[float]:
    for name, size in sizes.items():
        how = recipe.how.get(name)
        yield size * (16.0 if how is None else how.bits_per_weight) / 8
