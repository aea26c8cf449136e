"""README.md of a converted checkpoint: the recipe, its reason and cost, and the report.

It holds nothing about the run (no times, no paths), so that converting twice gives the same bytes.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mlx_diffusiongemma.convert.records import ConversionPlan
from mlx_diffusiongemma.convert.report import ClassReport, ConversionReport, recipe_notes
from mlx_diffusiongemma.hub_cache import format_size
from mlx_diffusiongemma.recipes import CLASS_LABELS
from mlx_diffusiongemma.version import __version__

_PROJECT = "mlx-diffusiongemma"


def card(plan: ConversionPlan, report: ConversionReport, *, source_name: str | None = None) -> str:
    """The text of README.md. `source_name` is the Hub name of the source, where it has one."""
    return "\n".join(_lines(plan, report, source_name)) + "\n"


def _lines(
    plan: ConversionPlan, report: ConversionReport, source_name: str | None
) -> Iterator[str]:
    yield from _front_matter(plan, source_name)
    source = f"[{source_name}](https://huggingface.co/{source_name})" if source_name else "a folder"
    yield f"# DiffusionGemma, {plan.recipe.name}"
    yield ""
    yield f"Converted from {source} by {_PROJECT} {__version__}."
    yield ""
    yield f"- Recipe `{plan.recipe.name}`: {plan.recipe.reason}."
    yield from (f"- {line}" for line in recipe_notes(plan))
    yield (
        f"- Experts hold {report.expert_share:.0%} of the text weights; a token meets "
        f"{report.top_k_experts} of {report.num_experts}."
    )
    yield (
        f"- {report.bits_per_weight:.3g} bits per weight, {format_size(report.text_bytes)} of text "
        f"weights, about {format_size(report.memory_bytes)} of memory at work in {report.dtype} "
        f"with {report.context} tokens of context."
    )
    yield ""
    if plan.layout == "mlx":
        yield '    dgemma-mlx generate --model FOLDER "Tell me a story about a frog."'
    else:
        yield "Names and layout are the released ones: transformers loads this folder."
    yield ""
    yield from _table(report.classes)
    yield ""
    yield (
        "Largest error: max |source - written| / max |source| of the worst tensor. RMS error: "
        "rms(source - written) / rms(source), over the class."
    )


def _front_matter(plan: ConversionPlan, source_name: str | None) -> Iterator[str]:
    yield "---"
    yield "library_name: " + ("mlx" if plan.layout == "mlx" else "transformers")
    yield "pipeline_tag: text-generation"
    if licence := _licence(plan.source / "README.md"):
        yield f"license: {licence}"
    if source_name:
        yield f"base_model: {source_name}"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("mlx", "diffusion", _PROJECT))
    yield "---"
    yield ""


def _licence(card: Path) -> str | None:
    """What the source's own card says; None when it says nothing."""
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = head and re.search(r"^license:\s*([\w.-]+)\s*$", head[1], re.MULTILINE)
    return found[1] if found else None


def _table(classes: tuple[ClassReport, ...]) -> Iterator[str]:
    yield "| class | weights | how | bits per weight | size | largest error | RMS error |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for part in classes:
        cells = (
            CLASS_LABELS[part.name],
            f"{part.weights:,}",
            ", ".join(part.packing),
            f"{part.bits_per_weight:.3g}",
            format_size(part.nbytes),
            _error(part.largest_error),
            _error(part.rms_error),
        )
        yield f"| {' | '.join(cells)} |"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"
