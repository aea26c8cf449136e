"""What `import mlx_diffusiongemma` promises: names, types, cost, one clear error without MLX."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_diffusiongemma

ROOT = Path(__file__).resolve().parents[1]


def run(code: str, *arguments: str, path: Path = ROOT, flags: tuple[str, ...] = ("-S",)):
    """Run code in a fresh interpreter; -S hides site-packages, so that there is no MLX."""
    return subprocess.run(
        [sys.executable, *flags, "-c", f"import sys; sys.path[:0] = sys.argv[1:]; {code}"]
        + [str(path), *arguments],
        capture_output=True,
        text=True,
        cwd=path.anchor,
        timeout=60,
    )


@pytest.mark.parametrize("name", mlx_diffusiongemma.__all__)
def test_every_public_name_is_there(name):
    assert getattr(mlx_diffusiongemma, name) is not None


def test_type_checkers_see_the_same_names():
    source = ast.parse((ROOT / "mlx_diffusiongemma/__init__.py").read_text())
    (typed,) = (node for node in source.body if isinstance(node, ast.If))
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    assert names | {"__version__"} == set(mlx_diffusiongemma.__all__)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        mlx_diffusiongemma.lod  # noqa: B018


def test_importing_the_package_does_not_load_mlx():
    code = "import mlx_diffusiongemma; print('mlx.core' in sys.modules, 'mlx_lm' in sys.modules)"
    assert run(code, flags=()).stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", ["mlx_diffusiongemma", "mlx_diffusiongemma.generation"])
def test_importing_without_mlx_is_one_clear_error(name):
    result = run(f"import {name}")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: MLX has no back-end here")
    assert "exactly one of the extras cpu, cuda12, cuda13" in last


def test_mlx_without_its_library_is_the_same_error(tmp_path):
    """What `pip install mlx` leaves on Linux: the bindings, and no libmlx.so for them."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('libmlx.so: cannot open')\n")
    result = run("import mlx_diffusiongemma", str(tmp_path))
    assert result.stderr.splitlines()[-1].startswith("ImportError: MLX has no back-end here")


def test_mlx_laid_out_in_another_way_is_accepted(tmp_path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text("")
    assert run("import mlx_diffusiongemma", str(tmp_path)).returncode == 0


def pretend(folder, *back_ends, core=""):
    """An MLX of that code, in the layout of its wheels, with the metadata of these back-ends."""
    (folder / "mlx" / "lib").mkdir(parents=True)
    (folder / "mlx" / "core.py").write_text(core)
    (folder / "mlx" / "lib" / "libmlx.so").touch()
    for name in ("mlx", "mlx_lm", *back_ends):
        (folder / f"{name}-0.32.4.dist-info").mkdir()
    return str(folder)


def test_two_back_ends_are_one_clear_error_that_names_both(tmp_path):
    result = run("import mlx_diffusiongemma", pretend(tmp_path, "mlx_cpu", "mlx_cuda_13"))
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: MLX has 2 back-ends here that overwrite each other: mlx-cpu and mlx-cuda-13. "
        "pip uninstall -y mlx mlx-cpu mlx-cuda-13; then install exactly one of the extras"
    )


@pytest.mark.parametrize("name", ["mlx_cpu", "mlx_metal"])
def test_one_back_end_is_accepted_without_importing_it(tmp_path, name):
    folder = pretend(tmp_path, name, core="raise SystemExit('imported')")
    assert run("import mlx_diffusiongemma", folder).returncode == 0


NO_GPU = """
class Kind: pass
cpu, gpu = Kind(), Kind()
default_device = lambda: {default}
device_count = lambda kind: {count}
"""


@pytest.mark.parametrize(
    ("core", "words"),
    [
        (
            "raise ImportError('libcuda.so.1: cannot open shared object file')",
            "ImportError: MLX's CUDA back-end does not load: libcuda.so.1: cannot open shared "
            "object file. `nvidia-smi` shows the driver, which brings libcuda",
        ),
        (
            "raise ImportError('cudaMallocManaged(&data, size) failed: CUDA driver version is "
            "insufficient for CUDA runtime version')",
            "ImportError: MLX's CUDA back-end does not load: cudaMallocManaged(&data, size) "
            "failed: CUDA driver version is insufficient for CUDA runtime version. `nvidia-smi` ",
        ),
        (
            NO_GPU.format(default="gpu", count=0),
            "ImportError: MLX's CUDA back-end finds no GPU. `nvidia-smi` shows the driver, which "
            "brings libcuda and has to be new enough, and the GPUs; CUDA_VISIBLE_DEVICES can hide",
        ),
        (NO_GPU.format(default="gpu", count=1), ""),
        (NO_GPU.format(default="cpu", count=0), ""),
    ],
    ids=["no driver", "an old driver", "no GPU", "a GPU", "told to use the CPU"],
)
def test_cuda_without_a_driver_or_a_gpu_is_one_clear_error(tmp_path, core, words):
    result = run("import mlx_diffusiongemma", pretend(tmp_path, "mlx_cuda_13", core=core))
    assert result.returncode == bool(words)
    assert result.stderr.splitlines()[-1:] == [] or result.stderr.splitlines()[-1].startswith(words)
    assert bool(result.stderr) == bool(words)


def test_the_command_says_so_too_as_an_error_and_a_hint(tmp_path):
    folder = pretend(tmp_path, "mlx_cpu", "mlx_cuda_12")
    command = [sys.executable, "-m", "mlx_diffusiongemma", "info", "demo"]
    environment = os.environ | {"PYTHONPATH": folder}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 1 and result.stdout == ""
    first, empty, last = result.stderr.splitlines()
    assert first == (
        "error: MLX has 2 back-ends here that overwrite each other: mlx-cpu and mlx-cuda-12"
    )
    assert (empty, last[:24]) == ("", "hint: pip uninstall -y m")


@pytest.mark.parametrize("arguments", [["generate", "--model", "demo", "hi"], ["info", "demo"]])
def test_the_command_without_mlx_is_one_line_too(arguments):
    code = f"""
import sys
sys.modules["mlx"] = None
sys.argv[:] = ["bin/dgemma-mlx", *{arguments}]
from mlx_diffusiongemma.cli.app import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: MLX has no back-end here")
    assert "Traceback" not in result.stderr


def test_importing_warns_of_nothing():
    modules = "cli.app, mlx_diffusiongemma.runtime, mlx_diffusiongemma.convert"
    code = f"import warnings, mlx_diffusiongemma.{modules}"
    result = run(code, flags=("-W", "error::DeprecationWarning:mlx_diffusiongemma"))
    assert (result.returncode, result.stderr) == (0, "")
