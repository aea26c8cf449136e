"""Recipes: what they say of each module, and the size they give for the released model."""

import re

import mlx.core as mx
import pytest

from mlx_diffusiongemma import device
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.convert.pack import pack, unpack
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import (
    DEFAULT_RECIPE,
    PACKABLE_CLASSES,
    RECIPES,
    RELEASED_SIZES,
    Recipe,
    class_sizes,
    find_recipe,
    tensor_class,
    uniform_recipe,
    weight_bytes,
    with_changes,
)
from mlx_diffusiongemma.released import released_values

LAYER = "model.decoder.layers.3"
EIGHT, FOUR = Quantization(8, 64), Quantization(4, 64)
# The widths of the released model's matrices.
WIDTHS = {
    "embedding": (2816,),
    "attention": (2816, 4096, 8192),
    "dense_mlp": (2816, 2112),
    "experts": (2816, 704),
    "router": (2816,),
    "self_conditioning": (2816, 2112),
}

MACS = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128)  # GB of memory that one can buy

each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_the_released_model_is_counted_from_its_config():
    assert class_sizes(parse_config(released_values())) == RELEASED_SIZES
    # The model's card cuts it to 25.2 B; norms and scalars are too few to show.
    assert f"{sum(RELEASED_SIZES.values()) / 1e9:.2f}" == "25.25"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("bf16", 50.5),
        ("8bit", 26.8),
        ("mixed-4-8", 15.4),
        ("mixed-3-8", 12.5),
        ("mixed-2-8", 9.7),
        ("mxfp4", 14.7),
        ("mxfp8", 26.0),
        ("nvfp4", 15.4),
    ],
)
def test_recipes_have_the_size_we_promise(name, gigabytes):
    assert weight_bytes(RECIPES[name]) / 1e9 == pytest.approx(gigabytes, rel=0.01)


@each_recipe
def test_recipes_say_why_and_fit_the_released_widths(recipe):
    assert recipe.reason and recipe.cost
    for name in PACKABLE_CLASSES:
        if how := recipe.how[name]:
            assert not any(width % how.group_size for width in WIDTHS[name])


@each_recipe
def test_the_mac_that_a_recipe_names_is_the_smallest_that_it_fits(recipe):
    config = parse_config(released_values())
    work = device.memory_need(config, [], mx.bfloat16, device.DEFAULT_CONTEXT).total
    # macOS gives the GPU two thirds of the memory, from 36 GB on three quarters.
    shares = {size: size * 2**30 * (3 / 4 if size >= 36 else 2 / 3) for size in MACS}
    fitting = [size for size in MACS if weight_bytes(recipe) + work <= shares[size]]
    named = re.match(r"a Mac with (\d+) GB", recipe.fit)
    assert named and int(named[1]) == fitting[0]


@each_recipe
def test_the_error_that_a_recipe_names_is_the_one_of_normal_weights(recipe):
    how = recipe.how["experts"]
    named = re.search(r"off by ([\d.]+) %", recipe.cost)
    assert (named is None) == (how is None)
    if named is None or how is None:
        return
    weights = mx.random.normal((512, 1024), key=mx.random.key(0)).astype(mx.bfloat16)
    read = unpack(pack(weights, how), how)
    weights = weights.astype(mx.float32)
    error = mx.sqrt((read - weights).square().mean() / weights.square().mean()).item()
    assert 100 * error == pytest.approx(float(named[1]), rel=0.06)


@each_recipe
def test_no_recipe_packs_router_norms_or_images(recipe):
    assert recipe.for_module(f"{LAYER}.router.proj") is None
    assert recipe.for_module(f"{LAYER}.input_layernorm") is None
    assert recipe.for_module("model.encoder.vision_tower.patch_embedder.input_proj") is None


def test_the_default_has_four_bits_for_experts_and_eight_elsewhere():
    recipe = RECIPES[DEFAULT_RECIPE]
    assert recipe.for_module(f"{LAYER}.experts.gate_up_proj") == FOUR
    for path in (
        "model.decoder.embed_tokens",
        f"{LAYER}.self_attn.q_proj",
        f"{LAYER}.mlp.down_proj",
        "model.decoder.self_conditioning.gate_proj",
    ):
        assert recipe.for_module(path) == EIGHT


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("model.decoder.embed_tokens.weight", "embedding"),
        (f"{LAYER}.self_attn.o_proj.weight", "attention"),
        (f"{LAYER}.self_attn.q_norm.weight", "norms"),
        (f"{LAYER}.mlp.up_proj.scales", "dense_mlp"),
        (f"{LAYER}.experts.down_proj.weight", "experts"),
        (f"{LAYER}.router.proj.weight", "router"),
        (f"{LAYER}.router.per_expert_scale", "router"),
        (f"{LAYER}.layer_scalar", "norms"),
        ("model.encoder.language_model.layers.3.layer_scalar", "norms"),
        ("model.decoder.self_conditioning.down_proj.weight", "self_conditioning"),
        ("model.decoder.self_conditioning.pre_norm.weight", "norms"),
        ("model.decoder.norm.weight", "norms"),
        ("model.encoder.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", "vision"),
        ("model.encoder.embed_vision.embedding_projection.weight", "vision"),
    ],
)
def test_every_tensor_has_a_class(parameter, expected):
    assert tensor_class(parameter) == expected


def test_the_first_override_that_matches_wins():
    overrides = (
        ("re:.*layers\\.[0-3]\\.experts\\.down_proj", None),
        ("*.layers.3.experts.*", EIGHT),
        ("experts", Quantization(2, 32)),
    )
    recipe = with_changes(RECIPES["8bit"], overrides=overrides)
    assert recipe.for_module("model.decoder.layers.3.experts.down_proj") is None
    assert recipe.for_module("model.decoder.layers.3.experts.gate_up_proj") == EIGHT
    assert recipe.for_module("model.decoder.layers.13.experts.down_proj") == Quantization(2, 32)
    assert recipe.for_module("model.decoder.layers.13.mlp.down_proj") == EIGHT
    assert recipe.name == "8bit with changes"
    # Later changes come before earlier ones.
    again = with_changes(recipe, overrides=(("experts", FOUR),))
    assert again.for_module("model.decoder.layers.3.experts.down_proj") == FOUR


def test_one_width_for_everything_leaves_the_router():
    recipe = uniform_recipe(Quantization(6, 32))
    assert recipe.for_module("model.decoder.embed_tokens") == Quantization(6, 32)
    assert recipe.for_module(f"{LAYER}.router.proj") is None
    assert "6 bits" in recipe.name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: find_recipe("4bit"), "there is no recipe '4bit'"),
        (lambda: with_changes(RECIPES["8bit"], dtype="float32"), "'float32'"),
        (lambda: with_changes(RECIPES["8bit"], overrides=(("re:(", None),)), "`re:\\(`"),
        (lambda: with_changes(RECIPES["8bit"], overrides=(("", None),)), "empty pattern"),
        (lambda: Recipe("x", {}, "", "", dtype="int8"), "'int8'"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
