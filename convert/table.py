"""What a conversion will do or did, as lines for people."""

import re
import shlex
from collections.abc import Iterator

from mlx_diffusiongemma.convert.records import ConversionPlan
from mlx_diffusiongemma.convert.report import (
    ConversionReport,
    describe_packing,
    recipe_notes,
    report,
)
from mlx_diffusiongemma.hub import DEMO
from mlx_diffusiongemma.hub_cache import format_size
from mlx_diffusiongemma.quantization import Quantization
from mlx_diffusiongemma.recipes import CLASS_LABELS

_TOKENIZER = "tokenizer.json"  # without one there is nothing to generate from


def describe_plan(plan: ConversionPlan) -> str:
    """The whole plan: every kind of tensor, then the totals."""
    return "\n".join(_plan_lines(plan, report(plan)))


def describe_report(report: ConversionReport) -> str:
    """Classes with bits, bytes and errors, then the totals."""
    return "\n".join(_report_lines(report))


def _plan_lines(plan: ConversionPlan, report: ConversionReport) -> Iterator[str]:
    yield f"recipe {plan.recipe.name}: {plan.recipe.reason}."
    yield from recipe_notes(plan)
    yield (
        f"Experts hold {report.expert_share:.0%} of the text model's weights; a token meets "
        f"{report.top_k_experts} of {report.num_experts}."
    )
    yield ""
    kinds: dict[tuple[str, str, str, str], list[int]] = {}
    for tensor in plan.tensors:
        name = re.sub(r"\.layers\.\d+\.", ".layers.*.", tensor.outputs[0].name)
        shape = " x ".join(map(str, _shape(tensor.outputs[0].shape, tensor.quantization)))
        if tensor.tensor_class == "vision":
            name, shape = "(all of the image side)", ""
        key = (name, shape, tensor.action, describe_packing(tensor))
        kinds.setdefault(key, []).append(tensor.nbytes)
    width = max(len(name) for name, *_ in kinds)
    yield f"{'tensor':{width}}  {'count':>5}  {'shape':>16}  {'':8}  {'written as':20}  {'size':>9}"
    for (name, shape, action, packing), sizes in kinds.items():
        yield (
            f"{name:{width}}  {len(sizes):>5}  {shape:>16}  {action:8}  {packing:20}  "
            f"{format_size(sum(sizes)):>9}"
        )
    yield ""
    yield from _report_lines(report)


def _shape(shape: tuple[int, ...], quantization: Quantization | None) -> tuple[int, ...]:
    if quantization:
        return (*shape[:-1], shape[-1] * 32 // quantization.bits)
    return shape


def _report_lines(report: ConversionReport) -> Iterator[str]:
    has_errors = any(part.largest_error is not None for part in report.classes)
    header = f"{'class':17}  {'weights':>14}  {'bits':>5}  {'size':>9}"
    yield header + (f"  {'largest error':>13}  {'rms error':>9}" if has_errors else "")
    for part in report.classes:
        line = (
            f"{CLASS_LABELS[part.name]:17}  {part.weights:>14,}  {part.bits_per_weight:>5.3g}  "
            f"{format_size(part.nbytes):>9}"
        )
        if part.largest_error is not None and part.rms_error is not None:
            line += f"  {part.largest_error:>13.2e}  {part.rms_error:>9.2e}"
        if part.search_gain is not None:
            line += f"  search removed {part.search_gain:.0%}"
        yield line
    yield (
        f"{'text model':17}  {report.text_weights:>14,}  {report.bits_per_weight:>5.3g}  "
        f"{format_size(report.text_bytes):>9}"
    )
    yield ""
    yield from _totals(report)


def _totals(report: ConversionReport) -> Iterator[str]:
    skipped = sum(report.skipped.values())
    yield (
        f"source tensors: {report.source_tensors} = {report.written} used + {report.merged} merged "
        f"+ {skipped} skipped"
    )
    for reason, count in report.skipped.items():
        yield f"    skipped {count}: each {reason}"
    files = f"{len(report.shards)} file" + "s" * (len(report.shards) != 1)
    yield f"output: {format_size(report.nbytes)} in {files}"
    yield (
        f"memory: {format_size(report.memory_bytes)} at work in {report.dtype} with "
        f"{report.context} tokens of context"
    )
    if report.copied:
        yield f"copied: {', '.join(report.copied)}"
    if report.missing:
        yield f"missing: {', '.join(report.missing)}"
    if report.seconds is not None and report.peak_memory is not None:
        seconds = f"{report.seconds:.{0 if report.seconds >= 10 else 1}f} s"
        yield f"took {seconds}, {format_size(report.peak_memory)} of memory at most"
    if report.output is not None:
        yield f"written to: {report.output}"
        if _TOKENIZER not in report.missing:
            folder = str(report.output)
            folder = shlex.quote(f"./{folder}" if folder == DEMO else folder)
            yield f'next: dgemma-mlx generate --model {folder} "Tell me a story about a frog."'
