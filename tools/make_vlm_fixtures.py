"""Record quantised checkpoints, and the logits mlx-vlm computes from them in float32.

    python tools/make_vlm_fixtures.py    # in an environment with mlx-vlm 0.7.10

The checkpoints are what `mlx_vlm.convert` writes for the tiny model `group_64`, as they are. In
bfloat16 mlx-vlm differs from itself by 3.5e-2 between two orders of summation, so that here every
floating-point tensor, scales and biases included, is cast to float32 before it runs.
"""

import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_vlm.convert import convert
from mlx_vlm.utils import load_model

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.reference.manifest import FIXTURES, write_arrays, write_section  # noqa: E402

SOURCE = FIXTURES / "checkpoints" / "group_64"
TOKENIZER = ROOT / "mlx_diffusiongemma" / "demo"  # the converter insists on one; it is not kept
KEPT = ("config.json", "model.safetensors", "model.safetensors.index.json")
RECIPES = {
    "affine_4_8": {"q_bits": 4, "q_group_size": 64},  # what `mlx_vlm.convert -q` does by default
    "affine_8": {"q_bits": 8, "q_group_size": 64},
    "mxfp4": {"q_bits": 4, "q_group_size": 32, "q_mode": "mxfp4"},
}
PROMPT_LENGTH, SEED, TEMPERATURE = 11, 7, 0.25


def convert_checkpoint(recipe: str) -> Path:
    """Convert the source by a recipe; returns the folder among the fixtures."""
    target = FIXTURES / "mlx_vlm" / recipe
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        source, output = Path(scratch) / "source", Path(scratch) / "output"
        shutil.copytree(SOURCE, source)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(TOKENIZER / name, source)
        convert(str(source), str(output), quantize=True, **RECIPES[recipe])
        for name in KEPT:
            shutil.copy(output / name, target)
    return target


def record(folder: Path, inputs: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Logits of mlx-vlm for one prompt and canvas, the names as in tools/reference/passes.py.

    `inputs` are the token ids of both, int32 [1, length]; None draws them.
    """
    model = load_model(folder)
    model.update(tree_map(_to_float32, model.parameters()))
    arrays = inputs or _draw_inputs(model.config)
    cache = model.make_cache()
    hidden, cache = model.model.encoder(mx.array(arrays["prompt"]), cache=cache)
    prefill = model._softcap(model.model.decoder.embed_tokens.as_linear(hidden[:, -1:]))
    canvas = mx.array(arrays["canvas"])
    first = model(canvas_ids=canvas, cache=cache).logits
    again = model(
        canvas_ids=canvas, cache=cache, self_conditioning_logits=first / TEMPERATURE
    ).logits
    results = {"prompt/logits": prefill, "denoise/logits": first, "conditioned/logits": again}
    return arrays | {name: np.array(logits) for name, logits in results.items()}


def _draw_inputs(config: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    lengths = {"prompt": PROMPT_LENGTH, "canvas": config.canvas_length}
    return {
        name: rng.integers(8, config.text_config.vocab_size, (1, length)).astype(np.int32)
        for name, length in lengths.items()
    }


def _to_float32(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def main() -> None:
    """Convert and record every recipe."""
    facts = {}
    for recipe, arguments in RECIPES.items():
        folder = convert_checkpoint(recipe)
        about = {"recipe": arguments, "temperature": TEMPERATURE}
        write_arrays(folder / "logits.safetensors", record(folder), about)
        facts[recipe] = about
    versions = {name: version(name) for name in ("mlx", "mlx-vlm", "numpy")}
    write_section("mlx_vlm", versions | {"python": platform.python_version()}, facts)


if __name__ == "__main__":
    main()
