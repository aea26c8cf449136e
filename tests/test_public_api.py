"""What `import mlx_diffusiongemma` promises: names, types, cost, one clear error without MLX."""

import ast
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
