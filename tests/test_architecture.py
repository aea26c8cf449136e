"""The shape of the code, as tests: who may import whom, how long things may get, what ships.

`LAYERS` is the architecture: a module imports only what stands left of it.
"""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "mlx_diffusiongemma"
# Where the package's code lies: folder on disk -> name when installed.
FOLDERS = {PACKAGE: PACKAGE, "convert": f"{PACKAGE}.convert", "metal": f"{PACKAGE}.metal"}

# fmt: off
LAYERS = [
    "version", "chips", "backend", "mlx_build", "errors", "constraints", "ranges", "fields",
    "options", "presets", "quantization", "config", "released", "recipes", "events",
    "kernels", "model",
    "sampling", "draws", "stopping", "acceptance", "passes", "denoising",
    "prefix_cache", "generation", "autoregressive",
    "text", "answer", "prompt_cache", "turns", "pace",
    "writing", "range_check", "responder", "choosing",
    "batch", "batch_file", "session_memory", "session",
    "first_use", "checkpoint", "summary", "device", "weights",
    "hub_cache", "hub_refusals", "hub", "hub_remote", "runtime", "device_report",
    "convert", "parity", "bench",
    "cli", "__init__", "__main__",
]
# fmt: on

# Who may import a library that the rest of the package must not see (a folder ends in /).
CONFINED = {
    "huggingface_hub": (
        "mlx_diffusiongemma/hub.py",
        "mlx_diffusiongemma/hub_refusals.py",
        "mlx_diffusiongemma/hub_remote.py",
    ),
    "mlx_lm": (
        "mlx_diffusiongemma/text.py",
        "mlx_diffusiongemma/answer.py",
        "mlx_diffusiongemma/autoregressive.py",
        "mlx_diffusiongemma/model/layers.py",
    ),
    "rich": ("mlx_diffusiongemma/cli/",),
    "typer": ("mlx_diffusiongemma/cli/",),
    "click": ("mlx_diffusiongemma/cli/",),
    "torch": ("mlx_diffusiongemma/parity/reference.py",),
    "transformers": ("mlx_diffusiongemma/parity/reference.py", "mlx_diffusiongemma/text.py"),
    "matplotlib": ("mlx_diffusiongemma/bench/plot.py",),
    # Scripts that another environment's interpreter runs; nothing here imports them.
    "mlx_vlm": (
        "mlx_diffusiongemma/bench/ledger_mlx_vlm.py",
        "mlx_diffusiongemma/bench/worker_mlx_vlm.py",
    ),
}

# mlx-vlm draws from MLX's global generator, and has no other.
GLOBAL_DRAWS = ("mlx_diffusiongemma/bench/worker_mlx_vlm.py",)

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
# Longer on purpose, each with its own limit: "path" or "path::function" -> lines.
ALLOWANCES: dict[str, int] = {}

SKIPPED_FOLDERS = {"build", "dist", "__pycache__"}
DOTTED_FOLDERS = {".ci", ".github"}
NATIVE_SUFFIXES = {".cpp", ".h", ".metal"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".sh", ".jinja", ".in", ".json", ""}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|work|tmp|opt)/\w")
UNFINISHED = re.compile(r"\b(?:" + "TO" + "DO|FIX" + r"ME)\b")


def is_ours(folder: str) -> bool:
    if folder.startswith("."):
        return folder in DOTTED_FOLDERS
    return folder not in SKIPPED_FOLDERS and not folder.endswith(".egg-info")


@cache
def all_files() -> tuple[Path, ...]:
    """Every file of the project on disk, without environments, build products and caches."""
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = filter(is_ours, subfolders)
        found += [Path(folder, name) for name in names if name != ".git"]  # a worktree has one
    return tuple(sorted(found))


PYTHON_FILES = [path for path in all_files() if path.suffix == ".py"]
NATIVE_FILES = [path for path in all_files() if path.suffix in NATIVE_SUFFIXES]
PACKAGE_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in FOLDERS]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_python_file = pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
each_package_file = pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return Path(parts[1]).stem if parts[0] == PACKAGE else parts[0]


def imports(path: Path) -> Iterator[str]:
    """Full dotted names of all imports, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_layers(path: Path) -> Iterator[str]:
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == PACKAGE:
            head = rest.partition(".")[0]
            # `from mlx_diffusiongemma import load` names a function: it comes from `__init__`.
            yield head if head in LAYERS else "__init__"


# Imports point one way ------------------------------------------------------------------------


@each_package_file
def test_every_module_has_a_place_in_the_layers(path):
    assert layer_of(path) in {*LAYERS, "metal"}, "give it a place in LAYERS"


@each_package_file
def test_imports_point_one_way(path):
    layer = layer_of(path)
    allowed = LAYERS[: LAYERS.index(layer) + 1] if layer in LAYERS else []
    for other in imported_layers(path):
        assert other in allowed, f"{layer} must not import {other}"


@each_python_file
def test_imports_are_absolute(path):
    for name in imports(path):
        assert name.partition(".")[0] not in ("convert", "metal"), f"import it as {PACKAGE}.{name}"


@each_package_file
@pytest.mark.parametrize("library", CONFINED)
def test_a_confined_library_stays_where_it_belongs(library, path):
    if not name_of(path).startswith(CONFINED[library] or ("nowhere",)):
        assert library not in {name.partition(".")[0] for name in imports(path)}


@pytest.mark.parametrize(
    "folder", [path.parent for path in PACKAGE_FILES if "__init__" in str(path)], ids=name_of
)
def test_no_exported_name_hides_a_module(folder):
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    for node in tree(folder / "__init__.py").body:
        if isinstance(node, ast.ImportFrom):
            assert not modules & {alias.asname or alias.name for alias in node.names}


# What a line may do ---------------------------------------------------------------------------


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the dotted name it is written with."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize(("language", "file"), [("metal", "launches"), ("cuda", "cuda")])
def test_kernels_are_built_in_one_file(language, file):
    makes = f"fast.{language}_kernel"
    builders = {name_of(p) for p in PACKAGE_FILES if any(n.endswith(makes) for n, _ in calls(p))}
    # The ledger's stand for other functions in a graph that is counted; they never run.
    counted = {"mlx_diffusiongemma/bench/graph.py"}
    assert builders - counted == {f"mlx_diffusiongemma/kernels/{file}.py"}


@each_package_file
def test_only_the_command_line_prints(path):
    if layer_of(path) != "cli":
        assert "print" not in {name for name, _ in calls(path)}


@each_package_file
def test_every_random_draw_has_an_explicit_key(path):
    for name, call in calls(path):
        if re.fullmatch(r"mx\.random\.(?!key$|split$)\w+", name):
            if name == "mx.random.seed" and name_of(path) in GLOBAL_DRAWS:
                continue
            assert name != "mx.random.seed", "never the global generator"
            assert "key" in {keyword.arg for keyword in call.keywords}, f"line {call.lineno}"


@each_package_file
def test_attributes_are_not_probed(path):
    probes = {f"{name}:{call.lineno}" for name, call in calls(path) if name == "hasattr"}
    probes |= {
        f"{name}:{call.lineno}"
        for name, call in calls(path)
        if name == "getattr" and isinstance(call.args[1], ast.Constant)
    }
    assert not probes


# Sizes and words ------------------------------------------------------------------------------


@each_python_file
def test_the_first_line_says_what_the_file_is_for(path):
    docstring = ast.get_docstring(tree(path)) or ""
    assert docstring.partition("\n")[0].rstrip().endswith((".", ":")), "one sentence, one line"


@each_python_file
def test_files_are_short(path):
    name = name_of(path)
    lines = len(path.read_text().splitlines())
    assert lines <= ALLOWANCES.get(name, MAX_FILE_LINES), f"{name} has {lines} lines"


@pytest.mark.parametrize("path", NATIVE_FILES, ids=name_of)
def test_native_files_are_short_and_say_what_they_are_for(path):
    first, *rest = path.read_text().splitlines()
    assert re.match(r"// .+[.:]$", first), "one sentence, one line"
    assert 1 + len(rest) <= MAX_FILE_LINES


@each_python_file
def test_functions_are_short(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{name_of(path)}::{node.name}"
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= ALLOWANCES.get(name, MAX_FUNCTION_LINES), f"{name} has {lines} lines"


def test_every_allowance_is_needed():
    for name, lines in ALLOWANCES.items():
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), f"{path} is gone"
        assert lines > (MAX_FUNCTION_LINES if function else MAX_FILE_LINES)


@pytest.mark.parametrize(
    "path", [p for p in all_files() if p.suffix in TEXT_SUFFIXES | NATIVE_SUFFIXES], ids=name_of
)
def test_no_machine_paths_and_nothing_left_undone(path):
    if path.stat().st_size > 1_000_000:
        return  # data
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = MACHINE_PATH.search(line) or UNFINISHED.search(line)
        assert not found, f"{name_of(path)}:{number} has `{found and found.group()}`"


# What ships -----------------------------------------------------------------------------------


def test_every_package_on_disk_is_listed_in_pyproject():
    """A forgotten one works in the editable install and is silently absent from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = set()
    for path in PACKAGE_FILES:
        folder, *rest = path.parent.relative_to(ROOT).parts
        on_disk.add(".".join([FOLDERS[folder], *rest]))
    assert set(listed["packages"]) == on_disk
    assert listed["package-dir"] == {name: folder for folder, name in FOLDERS.items()}


def test_every_folder_with_code_is_a_package():
    for folder in {path.parent for path in PACKAGE_FILES}:
        assert (folder / "__init__.py").exists()


def test_metal_sources_are_found_through_the_package():
    on_disk = {path.name for path in (ROOT / "metal").glob("*.metal")}
    seen = {entry.name for entry in files(f"{PACKAGE}.metal").iterdir()}
    assert on_disk == {name for name in seen if name.endswith(".metal")}
    assert not list((ROOT / "metal").glob("*/*.metal")), "package data is flat"
