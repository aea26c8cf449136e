"""The documents are part of the contract: what they name exists, what they show runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_diffusiongemma import device
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.recipes import RECIPES, find_recipe
from mlx_diffusiongemma.released import released_values
from mlx_diffusiongemma.version import __version__

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
GROUPS = ("bench", "parity")  # commands that have commands
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")

# The README lists every file of these folders; of the others, the folder or what matters in it.
LISTED_IN_FULL = ("mlx_diffusiongemma", "convert", "tools", "benchmarks", "docs")


def listed_files() -> dict[str, str]:
    """The README's tree: path -> what it says about it. A line ending in / opens a folder."""
    block = README.split("## The files", 1)[1].split("```")[1].removeprefix("text\n")
    files: dict[str, str] = {}
    folders: list[str] = []
    for line in block.strip("\n").splitlines():
        name, _, words = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = folders[:depth]
        path = "".join(folders) + name
        if name.endswith("/"):
            folders.append(name)
        files[path] = words.strip()
    return files


def test_every_path_in_the_readme_exists_and_is_explained():
    assert len(listed_files()) > 50
    for path, words in listed_files().items():
        assert (ROOT / path).exists(), path
        assert words, f"{path} has no line"


@pytest.mark.parametrize("folder", LISTED_IN_FULL)
def test_every_file_is_in_the_readme(folder):
    listed = listed_files()
    parts = {".py", ".md", ".sh", ".json"}
    for path in (ROOT / folder).rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        whole = any(name.startswith(f) for f in listed if f.endswith("/") and not holds_lines(f))
        if path.suffix in parts and "__pycache__" not in name and not whole:
            assert name in listed or path.name == "__init__.py", f"{name} is not in the README"


def holds_lines(folder: str) -> bool:
    """Whether the tree shows what is inside of a folder."""
    return any(path.startswith(folder) and path != folder for path in listed_files())


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def functions(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


@each_page
def test_what_a_page_points_at_exists(page):
    text = page.read_text()
    for file, name in NAMED_TEST.findall(text):
        assert name in functions(ROOT / file), f"{page.name} names {file}::{name}"
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_pages_that_name_tests_do():
    for name in ("contract.md", "pitfalls.md"):
        assert len(NAMED_TEST.findall((ROOT / "docs" / name).read_text())) > 10


@each_page
def test_every_make_target_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text()))
    assert named <= targets


def test_help_explains_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \w", MAKEFILE, re.MULTILINE))
    assert set(phony[1].split()) == explained


def test_every_option_in_the_readme_exists():
    commands = re.findall(r"`(?:[^`]*\| )?dgemma-mlx (\w+)([^`]*)`", README)
    assert {"generate", "chat", "info"} <= {name for name, _ in commands}
    for name, arguments in commands:
        of_a_group = arguments.split()[:1] if name in GROUPS else []
        command = [sys.executable, "-m", "mlx_diffusiongemma", name, *of_a_group, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for option in re.findall(r"(?<!\w)--[a-z-]+", arguments):
            assert option in shown, f"dgemma-mlx {name} has no {option}"


def test_the_sizes_in_the_readme_are_those_of_the_memory_check():
    config = parse_config(released_values())
    rows = re.findall(
        r"^\| `([\w-]+)`.*?\| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", README, re.M
    )
    assert [row[0] for row in rows] == ["bf16", "8bit", "mixed-4-8"]
    for name, *written in rows:
        weights = device.recipe_bytes(find_recipe(name), config, mx.bfloat16.size)
        needs = [device.memory_need(config, [], mx.bfloat16, n).total for n in (4096, 131_072)]
        assert written == [f"{size / 1e9:.1f}" for size in (weights, *(weights + n for n in needs))]


def test_the_sizes_of_the_recipes_are_those_of_the_memory_check():
    config = parse_config(released_values())
    work = device.memory_need(config, [], mx.bfloat16, device.DEFAULT_CONTEXT).total
    page = (ROOT / "docs" / "convert.md").read_text()
    rows = re.findall(
        r"^\| `([\w-]+)`.*?\| ([\d.]+) GB \| ([\d.]+) GB \| (\d+) GB.*\|$", page, re.M
    )
    assert [row[0] for row in rows] == list(RECIPES)
    for name, *written, mac in rows:
        size = device.recipe_bytes(RECIPES[name], config, mx.bfloat16.size)
        assert written == [f"{size / 1e9:.1f}", f"{(size + work) / 1e9:.1f}"]
        assert RECIPES[name].fit.startswith(f"a Mac with {mac} GB")


def test_the_conversion_that_a_page_shows_is_the_one_that_is_made(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "convert.md").read_text()
    (shown,) = re.findall(r"\$ dgemma-mlx convert demo --out demo-4-8\n(.*?)\$ ", page, re.S)
    command = [sys.executable, "-m", "mlx_diffusiongemma", "convert", "demo", "--out", "demo-4-8"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    varying = re.compile(r"^took .*$", re.M)
    assert varying.sub("took", made) == varying.sub("took", shown)
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "convert.md", "exec"), {})
    assert "source tensors: " in capsys.readouterr().out and (tmp_path / "demo-8").is_dir()


def test_what_a_session_takes_is_what_the_layers_of_the_released_model_make():
    page = (ROOT / "docs" / "sessions.md").read_text()
    written = re.findall(r"^\| .+ \| ([\d.]+ [kG]B) \|$", page, re.M)
    config = parse_config(released_values())
    full, sliding = 0, 0  # bytes of one token
    for layer in config.layers:
        size = 2 * layer.num_key_value_heads * layer.head_dim * mx.bfloat16.size
        full, sliding = (full, sliding + size) if layer.is_sliding else (full + size, sliding)
    seen, spare = config.sliding_window - 1, config.sliding_window
    assert written == [
        f"{full / 1e3:.0f} kB",
        f"{sliding * (seen + spare + config.canvas_length) / 1e9:.2f} GB",
        f"{sliding * seen / 1e9:.2f} GB",
    ]


def test_the_python_example_runs():
    scope: dict = {}
    for example in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(example, "README.md", "exec"), scope)
    assert scope["session"].cached_tokens > 0
    assert scope["result"].finish_reason == "stop"


def test_every_difference_names_its_test():
    table = CONTRACT.split("## Deliberate differences")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert rows
    for row in rows:
        assert "`tests/" in row, row


def test_every_test_of_the_contract_is_in_it():
    tests = {name for name in functions(ROOT / "tests/test_contract.py") if name[:5] == "test_"}
    as_the_reference_does = {"test_another_sampler_is_refused_by_name"}
    assert {name for name in tests if name not in CONTRACT} == as_the_reference_does


def test_the_changelog_has_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in headings
