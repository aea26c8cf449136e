"""benchmarks/recipes.py: the table of what recipes cost can be made, and says what it should."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recipes():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setattr(sys, "path", list(sys.path))
        import recipes

        yield recipes


def test_few_bits_move_the_logits_and_many_do_not(recipes):
    examples = recipes.draw_examples(["sudoku"], 1)
    assert examples == recipes.draw_examples(["sudoku"], 1)
    names = ["bf16", "8bit", "2bits", "2bits+search"]
    first, bf16, eight, two, searched = recipes.rows("demo", names, examples)
    assert (first.recipe, first.divergence, first.agreement) == ("(unconverted)", 0, 1)
    assert (bf16.divergence, bf16.right, bf16.steps) == (0, first.right, first.steps)
    assert 0 < eight.divergence < min(searched.divergence, two.divergence)
    assert eight.agreement >= two.agreement and eight.bits_per_weight > 8 > two.bits_per_weight
    assert set(first.right) == {"sudoku"} and first.steps >= 1
