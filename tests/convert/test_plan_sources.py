"""What the plan makes of its source: packed tensors, unknown ones, and those that do not fit."""

from collections import Counter

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma.convert.plan import plan
from mlx_diffusiongemma.errors import CheckpointError
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import RECIPES

MIXED = RECIPES["mixed-4-8"]
DOWN = "model.decoder.layers.0.experts.down_proj"


def sources(found):
    return [info.name for tensor in found.tensors for info in tensor.sources]


def test_unknown_tensors_stop_unless_allowed(write, tensors):
    source = write(tensors | {"model.decoder.layers.0.adapter.weight": mx.zeros((2, 2))})
    with pytest.raises(CheckpointError, match=r"adapter\.weight` in model\.safetensors"):
        plan(source, MIXED)
    found = plan(source, MIXED, allow_unknown=True)
    assert [(s.info.name, s.reason) for s in found.skipped] == [
        ("model.decoder.layers.0.adapter.weight", "is unknown")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({DOWN: None}, r"`model\.decoder\.layers\.0\.experts\.down_proj\.weight` is missing"),
        ({DOWN: mx.zeros((4, 128, 96))}, r"in model\.safetensors has shape \[4, 128, 96\], not"),
        ({DOWN: mx.zeros((4, 128, 128), mx.int32)}, "is I32, not BF16 or F16 or F32"),
    ],
)
def test_tensors_that_do_not_fit_are_named_with_their_file(write, tensors, change, message):
    changed = {name: array for name, array in (tensors | change).items() if array is not None}
    with pytest.raises(CheckpointError, match=message):
        plan(write(changed), MIXED)


def test_packed_sources_are_merged_or_copied_when_they_are_right_already(write, tensors):
    four, eight = Quantization(4, 64), Quantization(8, 64)
    packed, _ = tiny.pack(tensors, lambda path: four)
    source = write(packed, quantization=tiny.table(four))
    found = plan(source, MIXED)
    assert Counter(sources(found)) == Counter(list(packed))
    by_name = {tensor.parameter: tensor for tensor in found.tensors}
    experts, embedding = by_name[f"{DOWN}.weight"], by_name["model.decoder.embed_tokens.weight"]
    assert (experts.action, len(experts.sources), len(experts.outputs)) == ("copy", 3, 3)
    assert (embedding.action, embedding.source_quantization) == ("quantize", four)
    assert embedding.quantization == eight
    router = by_name["model.decoder.layers.0.router.proj.weight"]
    assert (router.action, router.quantization, len(router.sources)) == ("cast", None, 3)


def test_experts_may_be_named_as_mlx_names_them(write, tensors):
    named = {f"{name}.weight" if ".experts." in name else name: a for name, a in tensors.items()}
    outputs = [t.outputs for t in plan(write(named, name="mlx"), MIXED).tensors]
    assert outputs == [t.outputs for t in plan(write(tensors), MIXED).tensors]
    back = plan(write(named, name="mlx"), RECIPES["bf16"], layout="transformers")
    assert {output.name for tensor in back.tensors for output in tensor.outputs} == set(tensors)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda packed, config: config.pop("quantization"), "does not say how"),
        (lambda packed, config: packed.pop(f"{DOWN}.biases"), "1 tensors beside it.*affine"),
        (lambda packed, config: config["quantization"].update(bits=8), "has shape"),
    ],
)
def test_packed_sources_must_fit_their_table(tmp_path, values, tensors, spoil, message):
    packed, _ = tiny.pack(tensors, lambda path: Quantization(4, 64))
    config = values | {"quantization": tiny.table(Quantization(4, 64))}
    spoil(packed, config)
    with pytest.raises(CheckpointError, match=message):
        plan(tiny.write_checkpoint(tmp_path, config, packed), MIXED)
