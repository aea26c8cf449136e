"""transformers on the GPU against MLX on the GPU: tiny models, and layers of released width.

The reference runs in a process of its own, which gives its memory back; the two meet in a trace.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
import pytest
import tiny
from mlx.utils import tree_flatten
from places import Place
from recordings import tiny_folder
from synthetic_released import VISION_CONFIG

from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.ours import OurModel
from mlx_diffusiongemma.parity.trace import Trace
from mlx_diffusiongemma.parity.trace_file import read_trace
from mlx_diffusiongemma.parity.verdict import Verdict, judge
from mlx_diffusiongemma.parity.workflow import check
from mlx_diffusiongemma.released import released_values
from mlx_diffusiongemma.runtime import load_model

SECONDS = 150
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]


def reference_trace(place: Place, folder: Path, out: Path, dtype: str) -> Trace:
    """What `parity record` writes there; skips where torch sees no GPU."""
    command = [sys.executable, "-m", "mlx_diffusiongemma", "parity", "record", str(folder)]
    command += ["--suite", "small", "--out", str(out), "--dtype", dtype]
    command += ["--device", "cuda" if place.is_gpu else "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if "torch finds none here" in done.stderr:
        pytest.skip("torch sees no CUDA GPU")
    assert done.returncode == 0, done.stderr[-2000:]
    return read_trace(out)


def verdict_on(place: Place, folder: Path, trace: Trace, dtype: str) -> Verdict:
    with place.default():
        model = load_model(folder, dtype=dtype, force=True)
        comparison = check(trace, OurModel(model, model_facts(folder, str(folder))))
    worst = max(operation.relative for operation in comparison.operations)
    place.measured(f"relative_error.{dtype}", worst)
    return judge(comparison)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("small_window", "float32"), ("small_window", "bfloat16"), ("middle_window", "float32")],
)
def test_tiny_models_agree(place, tmp_path, name, dtype):
    if not place.is_gpu and dtype != "float32":
        pytest.skip("MLX has no such product with experts on the CPU")
    trace = reference_trace(place, tiny_folder(name), tmp_path / "trace", dtype)
    verdict = verdict_on(place, tiny_folder(name), trace, dtype)
    assert verdict.passed, verdict


def test_layers_of_released_width_agree_in_bfloat16(place, tmp_path):
    """A sliding and a full one; on the CPU tiny ones in float32."""
    dtype = "bfloat16" if place.is_gpu else "float32"
    folder = write_layers(place, tmp_path / "model")
    trace = reference_trace(place, folder, tmp_path / "trace", dtype)
    verdict = verdict_on(place, folder, trace, dtype)
    # Decisions of a random model that nobody chose for their margins hang on rounding.
    numbers = [each for each in verdict.checks if each.quantity != "generations that differ"]
    assert len(numbers) == len(verdict.checks) - 1 or dtype == "bfloat16"
    assert all(each.passed for each in numbers), verdict


def write_layers(place: Place, folder: Path) -> Path:
    """A random checkpoint of two layers, 3 GB on a GPU, made where it is fast."""
    values = tiny.config_values(num_hidden_layers=2, layer_types=[tiny.SLIDING, tiny.FULL])
    if place.is_gpu:
        values = released_values(layers=2, vocab_size=4096)
    images = {"boi_token_id": 5, "eoi_token_id": 6, "image_token_id": 7}
    values = {**values, **images, "vision_config": VISION_CONFIG}
    key, arrays = mx.random.key(0), {}
    with place.default():
        for name, array in tree_flatten(DiffusionGemma(parse_config(values)).parameters()):
            key, own = mx.random.split(key)
            numbers = mx.random.normal(array.shape, key=own)
            is_vector = array.ndim == 1
            numbers = 1 + 0.2 * numbers if is_vector else numbers * array.shape[-1] ** -0.5
            released = name.removesuffix(".weight") if ".experts." in name else name
            arrays[released] = numbers.astype(mx.bfloat16)
        return tiny.write_checkpoint(folder, values, arrays)
