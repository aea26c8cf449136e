"""Two traces of the same inputs, number by number: what differs, where, and by how much.

    compare(reference, other) --> Comparison: errors of every operation, of logits, of generations

Nothing is judged here; `verdict.py` does that. An error is relative to the reference's own size:
rms(other - reference) / rms(reference).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlx_diffusiongemma.errors import TraceError
from mlx_diffusiongemma.parity.facts import check_same_model
from mlx_diffusiongemma.parity.layout import PASSES, Pass, name_of
from mlx_diffusiongemma.parity.suite import inputs_of
from mlx_diffusiongemma.parity.trace import Arrays, GenerationCase, Manifest, PassCase, Trace

_DECISIONS = ("argmax", "accepted")


@dataclass(frozen=True, kw_only=True)
class OperationError:
    """How far one operation of one pass lies from the reference.

    Attributes:
        layer: None outside of the layers.
        max_error: largest absolute error.
        rms_error: root of the mean square error.
        relative: `rms_error` as a share of the reference's rms; of "experts" the share of tokens
            that went to another set of experts.
        typical: the same of the middle one of the kept rows. A token that rounding sends to other
            experts moves `relative` far, and this not.
    """

    case: str
    pass_name: str
    layer: int | None
    operation: str
    max_error: float
    rms_error: float
    relative: float
    typical: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitError:
    """How far the predictions of one pass lie from the reference's.

    Attributes:
        kl: KL divergence in nats of each position, from the reference; the tokens that were not
            kept count as one, so it is a lower bound.
        max_error: largest absolute error of a kept logit.
        agreement: share of positions with the same best token.
    """

    case: str
    pass_name: str
    kl: tuple[float, ...]
    max_error: float
    agreement: float


@dataclass(frozen=True, kw_only=True)
class StepAgreement:
    """One step of a replayed generation: shares of positions that agree, and entropy in nats."""

    canvas: int
    step: int
    argmax: float
    accepted: float
    entropy_error: float


@dataclass(frozen=True, kw_only=True)
class GenerationDifference:
    """One generation with the same draws on both sides.

    Attributes:
        steps, other_steps: denoising steps of each canvas, the reference's first.
        first: (canvas, step) where a decision first differs, from 0; None when none does.
        agreement: the steps that both took.
        same_answer: the same tokens came out.
    """

    name: str
    steps: tuple[int, ...]
    other_steps: tuple[int, ...]
    first: tuple[int, int] | None
    agreement: tuple[StepAgreement, ...]
    same_answer: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Everything that was compared; operations in the order in which they are computed."""

    reference: Manifest
    other: Manifest
    operations: tuple[OperationError, ...]
    logits: tuple[LogitError, ...]
    generations: tuple[GenerationDifference, ...]


def compare(reference: Trace, other: Trace) -> Comparison:
    """Compare two traces; TraceError when they are of other models or of other inputs."""
    check_same_model(reference.manifest.model, other.manifest.model)
    _check_same_inputs(reference, other)
    operations: list[OperationError] = []
    logits: list[LogitError] = []
    for case in reference.manifest.cases:
        for each in PASSES:
            operations += _operation_errors(case, each, reference, other.arrays)
            logits.append(_logit_error(case, each, reference, other.arrays))
    return Comparison(
        reference=reference.manifest,
        other=other.manifest,
        operations=tuple(operations),
        logits=tuple(logits),
        generations=tuple(
            _generation_difference(case, reference.arrays, other.arrays)
            for case in reference.manifest.generations
            if f"generations/{case.name}/steps" in other.arrays
        ),
    )


def _check_same_inputs(reference: Trace, other: Trace) -> None:
    """Of the draws only the first canvas: what follows depends on what a model makes of it."""
    mine, theirs = inputs_of(reference), inputs_of(other)
    same = mine.sampling == theirs.sampling and mine.cases == theirs.cases
    asked = _asked(theirs.generations)  # none where a model's numbers were not finite
    same &= asked in ([], _asked(mine.generations))
    names = [name for name in mine.arrays if name.startswith("passes/")]
    names += [f"generations/{case.name}/prompt" for case in theirs.generations]
    same = same and all(
        np.array_equal(mine.arrays[name], theirs.arrays.get(name, ())) for name in names
    )
    for case in theirs.generations if same else ():
        name = f"generations/{case.name}/initial"
        same &= np.array_equal(mine.arrays[name][0], theirs.arrays[name][0])
    if not same:
        raise TraceError(
            "the two traces were recorded on other inputs, or with other draws",
            hint="record the second one with `--like` and the first one",
        )


def _asked(cases: tuple[GenerationCase, ...]) -> list[tuple]:
    return [(case.name, case.text, case.max_tokens, case.settings) for case in cases]


def _operation_errors(
    case: PassCase, each: Pass, reference: Trace, other: Arrays
) -> Iterator[OperationError]:
    architecture = reference.manifest.model.architecture
    for layer, operation in each.operations(len(architecture.head_dims)):
        name = name_of(case.name, each.name, layer, operation)
        want, got = reference.arrays[name], other[name]
        if operation == "router_weights":  # by expert, so that other choices count as errors
            experts = name_of(case.name, each.name, layer, "experts")
            want = _by_expert(reference.arrays[experts], want, architecture.num_experts)
            got = _by_expert(other[experts], got, architecture.num_experts)
        if operation == "experts":
            share = float((want != got).any(-1).mean())
            worst, rms, typical = float(share > 0), share, share
        else:
            worst, rms, share = _errors(want, got)
            rows = [_errors(*row)[2] for row in zip(want, got, strict=True)]
            typical = float(np.median(rows))
        yield OperationError(
            case=case.name,
            pass_name=each.name,
            layer=layer,
            operation=operation,
            max_error=worst,
            rms_error=rms,
            relative=share,
            typical=typical,
        )


def _by_expert(experts: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    spread = np.zeros((len(experts), count), np.float32)
    np.put_along_axis(spread, experts.astype(np.int64), weights, axis=-1)
    return spread


def _errors(want: np.ndarray, got: np.ndarray) -> tuple[float, float, float]:
    """Largest, rms and relative error; infinite where numbers are not finite."""
    want, got = want.astype(np.float64), got.astype(np.float64)
    if not np.isfinite(got).all():
        return float("inf"), float("inf"), float("inf")
    rms = float(np.sqrt(np.mean((got - want) ** 2)))
    size = float(np.sqrt(np.mean(want**2)))
    relative = rms / size if size else (float("inf") if rms else 0.0)
    return float(np.abs(got - want).max()), rms, relative


def _logit_error(case: PassCase, each: Pass, reference: Trace, other: Arrays) -> LogitError:
    start, theirs = f"passes/{case.name}/{each.name}", reference.arrays
    want, got = theirs[f"{start}/logits"], other[f"{start}/logits"]
    kl = divergence(
        want - theirs[f"{start}/logsumexp"][:, None],
        got - other[f"{start}/logsumexp"][:, None],
        rest=want.shape[-1] < reference.manifest.model.architecture.vocab_size,
    )
    same = theirs[f"{start}/argmax"] == other[f"{start}/argmax"]
    return LogitError(
        case=case.name,
        pass_name=each.name,
        kl=tuple(float(value) for value in kl),
        max_error=_errors(want, got)[0],
        agreement=float(same.mean()),
    )


def divergence(want: np.ndarray, got: np.ndarray, *, rest: bool) -> np.ndarray:
    """KL in nats between distributions given by log-probabilities [rows, kept].

    With `rest`, what is missing to 1 counts as one more token on either side.
    """
    want, got = want.astype(np.float64), got.astype(np.float64)
    kl = np.sum(np.exp(want) * (want - got), axis=-1)
    if rest:
        left = np.clip(1 - np.exp(want).sum(-1), 1e-12, 1)
        other_left = np.clip(1 - np.exp(got).sum(-1), 1e-12, 1)
        kl += left * np.log(left / other_left)
    finite = np.where(np.isfinite(kl), kl, np.inf)
    return np.maximum(finite, 0.0)


def _generation_difference(
    case: GenerationCase, reference: Arrays, other: Arrays
) -> GenerationDifference:
    start = f"generations/{case.name}"
    counts = [tuple(map(int, arrays[f"{start}/steps"])) for arrays in (reference, other)]
    agreement, first = [], None
    for canvas, (mine, theirs) in enumerate(zip(*counts, strict=False)):
        rows = [sum(count[:canvas]) for count in counts]
        for step in range(min(mine, theirs)):
            found = _step_agreement(start, (reference, other), [row + step for row in rows])
            at = StepAgreement(canvas=canvas, step=step, **found)
            agreement.append(at)
            if first is None and min(at.argmax, at.accepted) < 1:
                first = canvas, step
        if first is None and mine != theirs:
            first = canvas, min(mine, theirs)
    return GenerationDifference(
        name=case.name,
        steps=counts[0],
        other_steps=counts[1],
        first=first,
        agreement=tuple(agreement),
        same_answer=np.array_equal(reference[f"{start}/answer"], other[f"{start}/answer"]),
    )


def _step_agreement(start: str, sides: tuple[Arrays, Arrays], rows: list[int]) -> dict[str, float]:
    """Of one step; `rows` says where it lies in either side's arrays."""
    found = {}
    for name in _DECISIONS:
        mine, theirs = (side[f"{start}/{name}"][row] for side, row in zip(sides, rows, strict=True))
        found[name] = float((mine == theirs).mean())
    mine, theirs = (side[f"{start}/entropy"][row] for side, row in zip(sides, rows, strict=True))
    return found | {"entropy_error": float(np.abs(mine - theirs).max())}
