"""Loading in a process of its own: without a compiler, and in how much memory."""

import os
import subprocess
import sys

import tiny

GENERATE = """
from importlib.resources import files
from pathlib import Path
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.events import BlockCommitted
from mlx_diffusiongemma.generation import alone, block_loop
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.runtime import load_model

model = load_model(str(files("mlx_diffusiongemma") / "demo"))
cache = PrefixCache(model)
loop = block_loop(
    model.config, [2, 50, 60, 70], cache, draws=SeededDraws(1),
    settings=SamplerSettings(max_denoising_steps=3), max_tokens=40, eos_token_ids=frozenset(),
)
events = alone(loop, cache)
print(sum(len(event.token_ids) for event in events if isinstance(event, BlockCommitted)))
"""


def run_python(code, *arguments, **environment):
    environment = {"HOME": os.environ["HOME"]} | environment
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_demo_runs_where_there_is_no_compiler(tmp_path):
    assert run_python(GENERATE, PATH="", TMPDIR=str(tmp_path)) == "40"


def test_the_demo_runs_where_the_compiler_is_broken(tmp_path):
    """MLX asks a compiler for its version first, and compiles nothing where it finds none."""
    for name in ("g++", "c++", "clang++"):
        (tmp_path / name).write_text('#!/bin/sh\ntest "$*" = --version\n')
        (tmp_path / name).chmod(0o755)
    assert run_python(GENERATE, PATH=str(tmp_path), TMPDIR=str(tmp_path)) == "40"


LOAD = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_diffusiongemma import weights
from mlx_diffusiongemma.config import read_config

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )

weights._SLICE_BYTES = int(sys.argv[2])
before = resident()
model = weights.load_weights(read_config(Path(sys.argv[1])), Path(sys.argv[1]), mx.float32)
nbytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
print(nbytes, mx.get_active_memory(), mx.get_peak_memory(), resident() - before)
"""


def test_loading_takes_the_memory_of_the_model_and_of_one_slice(tmp_path):
    values = tiny.config_values(hidden_size=512, intermediate_size=2048, vocab_size=2048)
    tiny.write_checkpoint(tmp_path, values, tiny.random_tensors(values))
    size = (tmp_path / "model.safetensors").stat().st_size
    one_slice = size // 8
    output = run_python(LOAD, str(tmp_path), str(one_slice), PATH=os.environ["PATH"])
    nbytes, active, peak, resident = map(int, output.split())
    assert nbytes > 1.9 * size  # float32 of bfloat16
    assert active >= nbytes  # nothing is left to be read later
    assert peak < nbytes + 2 * one_slice
    assert resident < nbytes + 2 * one_slice + 30_000_000  # and what Python brings
