"""A model of any size with random packed weights, made in memory on the device itself.

    lazy_model(config, recipe) --> one random array for each parameter --> model

Nothing is quantised and no file is written: 15 GB take seconds. The numbers spread as those of a
new network do, so that logits, experts and entropies are ordinary ones.
"""

import math

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_diffusiongemma.bench.ledger import lazy_model
from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.recipes import Recipe

_HALF_WORD = 1 << 16


def random_model(config: ModelConfig, recipe: Recipe, *, seed: int = 0) -> DiffusionGemma:
    """A model packed by `recipe`, affine only; the same numbers every time on one device."""
    model = lazy_model(config, recipe)
    shapes = {name: array.shape for name, array in tree_flatten(model.parameters())}
    dtype = getattr(mx, recipe.dtype)
    key = mx.random.key(seed)
    for name, shape in shapes.items():
        key, own = mx.random.split(key)
        path, _, leaf = name.rpartition(".")
        how = recipe.for_module(path) if f"{path}.scales" in shapes else None
        if how is None:
            array = _plain(shape, dtype, own)
        elif not how.has_biases:
            raise ValueError(f"{how} is not affine")
        elif leaf == "weight":
            array = _words(shape, own)
        else:
            step = _step(how.bits, how.group_size * shape[-1])
            number = step if leaf == "scales" else -step * (2**how.bits - 1) / 2
            array = mx.full(shape, number, dtype)
        mx.eval(array)
        model.load_weights([(name, array)], strict=False)
    mx.clear_cache()
    return model.eval()


def _plain(shape: tuple[int, ...], dtype: mx.Dtype, key: mx.array) -> mx.array:
    if len(shape) == 1:  # norms and scalars
        return mx.ones(shape, dtype)
    return (mx.random.normal(shape, key=key) * shape[-1] ** -0.5).astype(dtype)


def _words(shape: tuple[int, ...], key: mx.array) -> mx.array:
    """Every bit random; a draw of 32 bits would go through float32, which holds 24."""
    high, low = (
        mx.random.randint(0, _HALF_WORD, shape, mx.uint32, key=half)
        for half in mx.random.split(key)
    )
    return high * _HALF_WORD + low


def _step(bits: int, fan_in: int) -> float:
    """Between two packed values, so that they deviate by fan_in ** -0.5."""
    return math.sqrt(12 / fan_in) / 2**bits
