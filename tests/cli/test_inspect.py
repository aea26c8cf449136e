"""`dgemma-mlx inspect`: tensors of one checkpoint, differences between two."""

import json

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma.convert import compare as compare_module
from mlx_diffusiongemma.convert.compare import compare
from mlx_diffusiongemma.quantization import Quantization

UP = "model.decoder.layers.1.mlp.up_proj.weight"
FOUR = Quantization(4, 64)


@pytest.fixture(scope="module")
def tensors():
    return tiny.random_tensors(tiny.config_values())


@pytest.fixture
def write(tmp_path):
    def write_one(tensors, name, **changes):
        values = tiny.config_values() | changes
        return str(tiny.write_checkpoint(tmp_path / name, values, tensors))

    return write_one


def test_tensors_are_listed_with_dtype_shape_size_and_file(run_here, write, tensors):
    packed, _ = tiny.pack(tensors, lambda path: FOUR)
    folder = write(packed, "packed", quantization=tiny.table(FOUR))
    lines = run_here("inspect", folder).out.splitlines()
    assert len(lines) == len(packed) + 2
    (line,) = [line for line in lines if line.startswith(UP)]
    assert line.split() == [UP, "U32", *["128", "x", "16"], "8.2", "kB", "model.safetensors"]
    total = sum(array.nbytes for array in packed.values())
    assert lines[-1] == f"{len(packed)} tensors, {total / 1e3:.1f} kB"


def test_json_and_only(run_here, write, tensors):
    out = run_here("inspect", write(tensors, "a"), "--only", "*.mlp.up_proj.*", "--json").out
    found = json.loads(out)["tensors"]
    assert len(found) == 3
    assert found[1] == {
        "name": UP,
        "dtype": "BF16",
        "shape": [128, 128],
        "bytes": 2 * 128 * 128,
        "file": "model.safetensors",
    }


def test_equal_checkpoints_do_not_differ(run_here, write, tensors):
    one, other = write(tensors, "one"), write(tensors, "other")
    out = run_here("inspect", "--diff", one, other).out
    assert out == f"{len(tensors)} tensors compared, 0 differ\n"


def test_the_error_of_one_tensor_is_shown(run_here, write, tensors):
    changed = mx.array(tensors[UP])
    largest = mx.abs(changed).max().item()
    changed[3, 4] = changed[3, 4] + 1
    step = (changed.astype(mx.float32)[3, 4] - tensors[UP].astype(mx.float32)[3, 4]).item()
    one, other = write(tensors, "one"), write(tensors | {UP: changed}, "other")
    found = json.loads(run_here("inspect", "--diff", one, other, "--json").out)["differences"]
    by_name = {each["name"]: each for each in found}
    assert len(by_name) == len(tensors)
    assert by_name[UP]["largest_error"] == pytest.approx(step / largest, rel=1e-5)
    squares = tensors[UP].astype(mx.float32).square().sum().item()
    assert by_name[UP]["rms_error"] == pytest.approx(step / squares**0.5, rel=1e-4)
    assert sum(each["largest_error"] > 0 for each in found) == 1
    text = run_here("inspect", "--diff", one, other).out
    assert UP in text and f"{len(tensors)} tensors compared, 1 differ" in text


def test_packed_and_unpacked_are_compared_by_their_numbers_in_slices(
    write, tensors, tmp_path, monkeypatch
):
    packed, unpacked = tiny.pack(tensors, lambda path: FOUR)
    one = tiny.write_checkpoint(tmp_path / "one", tiny.config_values(), unpacked)
    other = write(packed, "other", quantization=tiny.table(FOUR))
    monkeypatch.setattr(compare_module, "SLICE_BYTES", 5000)
    for each in compare(one, tmp_path / "other"):
        assert each.largest < 1e-6, each.parameter
    (difference,) = [each for each in compare(one, tmp_path / "other") if each.parameter == UP]
    assert difference.packings == (None, FOUR) and other


def test_slices_add_up_to_the_error_of_the_whole(write, tensors, tmp_path, monkeypatch):
    two = Quantization(2, 64)
    packed, _ = tiny.pack(tensors, lambda path: two)
    write(tensors, "one")
    write(packed, "other", quantization=tiny.table(two))
    whole = list(compare(tmp_path / "one", tmp_path / "other"))
    monkeypatch.setattr(compare_module, "SLICE_BYTES", 20_000)
    for each, same in zip(compare(tmp_path / "one", tmp_path / "other"), whole, strict=True):
        assert each.largest == same.largest, each.parameter
        assert each.rms == pytest.approx(same.rms, rel=1e-9)
    assert max(same.rms for same in whole) > 0.1


def test_only_some_are_compared_too(run_here, write, tensors):
    one, other = write(tensors, "one"), write(tensors, "other")
    out = run_here("inspect", "--diff", one, other, "--only", "*.up_proj.*").out
    assert out == "4 tensors compared, 0 differ\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["one", "other"], "2 models were given, and this takes 1"),
        (["--diff", "one"], "1 model was given, and this takes 2"),
        (["--diff", "one", "small"], "has shape"),
        (["--diff", "one", "shallow"], "is in `"),
    ],
)
def test_what_cannot_be_compared_is_an_error(run_here, write, tensors, tmp_path, args, message):
    write(tensors, "one")
    write(tensors, "other")
    small = tiny.config_values(vocab_size=64)
    tiny.write_checkpoint(tmp_path / "small", small, tiny.random_tensors(small))
    shallow = tiny.config_values(num_hidden_layers=2, layer_types=[tiny.SLIDING, tiny.FULL])
    tiny.write_checkpoint(tmp_path / "shallow", shallow, tiny.random_tensors(shallow))
    paths = [arg if arg.startswith("-") else str(tmp_path / arg) for arg in args]
    run = run_here("inspect", *paths)
    assert run.code == 1 and run.out == "" and message in run.err and "hint" in run.err
