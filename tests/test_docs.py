"""What the documents point at exists: every test they name, every file they link."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_at_exists(page):
    text = page.read_text(encoding="utf-8")
    for file, name in NAMED_TEST.findall(text):
        assert name in functions(ROOT / file), f"{page.name} names {file}::{name}"
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_pages_that_name_tests_do():
    for name in ("contract.md", "pitfalls.md"):
        assert len(NAMED_TEST.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))) > 10
