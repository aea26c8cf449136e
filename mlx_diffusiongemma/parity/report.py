"""A judged comparison as JSON, and as lines for people."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from mlx_diffusiongemma.parity.comparison import Comparison, GenerationDifference, OperationError
from mlx_diffusiongemma.parity.layout import OPERATIONS
from mlx_diffusiongemma.parity.trace import Manifest
from mlx_diffusiongemma.parity.verdict import (
    Verdict,
    mean_kl,
    operations,
    routed_elsewhere,
    top_1_agreement,
)


def as_fields(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Everything by name, ready for JSON; an error that is no number is null."""
    fault = None
    if verdict.fault is not None:
        fault = asdict(verdict.fault) | {"jumps": verdict.fault.jumps}
    fields = {
        "passed": verdict.passed,
        "precision": verdict.precision,
        "checks": [asdict(check) for check in verdict.checks],
        "fault": fault,
        "reference": _side(comparison.reference),
        "other": _side(comparison.other),
        "same_weights": same_weights(comparison),
        "operations": [asdict(each) for each in comparison.operations],
        "logits": [
            asdict(each) | {"mean_kl": float(np.mean(each.kl))} for each in comparison.logits
        ],
        "generations": [asdict(each) for each in comparison.generations],
    }
    cleaned: dict[str, Any] = _finite(fields)
    return cleaned


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _side(manifest: Manifest) -> dict[str, Any]:
    return {"model": asdict(manifest.model), "producer": asdict(manifest.producer)}


def same_weights(comparison: Comparison) -> bool:
    """Whether both sides read the very same files."""
    return comparison.reference.model.weights == comparison.other.model.weights


def describe(manifest: Manifest) -> str:
    """Which model, computed how, in one line."""
    producer = manifest.producer
    at = f" at {manifest.model.revision[:12]}" if manifest.model.revision else ""
    model = f"{manifest.model.name or 'a folder'}{at}"
    packed = f", {producer.precision}" if "bit" in producer.precision else ""
    return f"{model}, {producer.backend} in {producer.dtype}{packed} on {producer.device}"


def worst_by_operation(comparison: Comparison) -> list[OperationError]:
    """For each operation the place with the largest relative error, in order of computation."""
    worst: dict[str, OperationError] = {}
    for each in operations(comparison):
        if each.operation not in worst or each.relative > worst[each.operation].relative:
            worst[each.operation] = each
    return [worst[name] for name in OPERATIONS if name in worst]


def as_lines(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    """The report for a terminal; the verdict comes last."""
    yield f"reference  {describe(comparison.reference)}"
    yield f"compared   {describe(comparison.other)}"
    yield f"weights    {'the same files' if same_weights(comparison) else 'other files'}"
    yield ""
    yield from _operation_lines(comparison)
    yield ""
    yield from _layer_lines(comparison)
    yield ""
    kl = np.concatenate([each.kl for each in comparison.logits])
    yield f"KL         mean {mean_kl(comparison):.1e}, largest {kl.max():.1e} nats"
    yield f"top-1      {_percent(top_1_agreement(comparison))} of positions agree"
    same = _percent(1 - routed_elsewhere(comparison))
    yield f"router     {same} of tokens go to the same experts"
    for each in comparison.generations:
        yield f"replay     {generation_line(each)}"
    yield ""
    yield from verdict_lines(verdict)


def _operation_lines(comparison: Comparison) -> Iterator[str]:
    header = f"{'largest':>9}  {'rms':>9}  {'relative':>9}  {'typical':>9}"
    yield f"{'operation':18} {header}  where it is worst"
    for each in worst_by_operation(comparison):
        numbers = (each.max_error, each.rms_error, each.relative, each.typical)
        place = "" if each.layer is None else f"layer {each.layer}, "
        yield (
            f"{each.operation.replace('_', ' '):18} "
            + "  ".join(f"{number:9.1e}" for number in numbers)
            + f"  {place}{each.pass_name} of {each.case}"
        )


def _layer_lines(comparison: Comparison) -> Iterator[str]:
    yield f"{'layer':>5}  {'worst operation':18} {'relative':>9}  {'output':>9}  same experts"
    for layer in range(len(comparison.reference.model.architecture.head_dims)):
        here = [each for each in operations(comparison) if each.layer == layer]
        worst = max(here, key=lambda each: each.relative)
        output = max(each.relative for each in here if each.operation == "output")
        moved = [
            each.relative
            for each in comparison.operations
            if (each.layer, each.operation) == (layer, "experts")
        ]
        yield (
            f"{layer:5}  {worst.operation.replace('_', ' '):18} {worst.relative:9.1e}  "
            f"{output:9.1e}  {_percent(1 - float(np.mean(moved))):>12}"
        )


def generation_line(each: GenerationDifference) -> str:
    """One replayed generation in words."""
    steps, other = (" ".join(map(str, counts)) for counts in (each.steps, each.other_steps))
    said = "the same answer" if each.same_answer else "another answer"
    if each.first is None:
        return f"{each.name}: steps {steps}, every decision is the same"
    canvas, step = each.first
    differs = f"first differs in canvas {canvas + 1}, step {step + 1}"
    return f"{each.name}: steps {steps}, here {other}; {differs}; {said}"


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """What was held against which limit, where the fault is, and the verdict."""
    for check in verdict.checks:
        relation = "at least" if check.quantity == "top-1 agreement" else "at most"
        mark = "ok  " if check.passed else "FAIL"
        yield f"{mark} {check.quantity:24} {check.value:9.2g}  {relation} {check.limit:g}"
    if verdict.fault is not None:
        yield f"first fault: {verdict.fault}"
    yield f"{'PASS' if verdict.passed else 'FAIL'} as {verdict.precision}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
