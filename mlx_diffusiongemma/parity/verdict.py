"""Is a comparison good enough for how exactly the two sides compute, and if not, where it breaks.

Limits belong to precision classes. They are several times what this package, transformers in half
precision and conversions of the demo and tiny models show against transformers in float32; nobody
has measured the released model yet (docs/parity.md has the numbers).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.comparison import Comparison, LogitError, OperationError
from mlx_diffusiongemma.parity.trace import PRECISIONS

_JUMP = (
    5.0  # times the largest error before it: no rounding grows so fast from one step to the next
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a precision class may differ by.

    Attributes:
        operation: relative error of any operation.
        of_every_row: whether that counts every kept token, or the typical one. Rounding sends
            tokens to other experts in all classes but the finest.
        suspicious: errors above it that jump are what `Fault` looks for.
        routing: share of tokens that go to another set of experts.
        kl: mean KL divergence of all positions, in nats.
        agreement: least share of positions with the same best token.
        exact_replay: whether a replayed generation must make the same decisions at every step.
    """

    operation: float
    suspicious: float
    routing: float
    kl: float
    agreement: float
    of_every_row: bool = False
    exact_replay: bool = False


LIMITS = {
    "fp32": Limits(
        operation=1e-4,
        suspicious=1e-4,
        routing=1e-3,
        kl=1e-6,
        agreement=0.999,
        of_every_row=True,
        exact_replay=True,
    ),
    "fp16": Limits(operation=0.5, suspicious=0.05, routing=0.1, kl=0.03, agreement=0.9),
    "bf16": Limits(operation=0.6, suspicious=0.1, routing=0.15, kl=0.06, agreement=0.9),
    "8-bit": Limits(operation=0.7, suspicious=0.2, routing=0.2, kl=0.2, agreement=0.85),
    "4-bit": Limits(operation=1.3, suspicious=0.5, routing=0.4, kl=0.8, agreement=0.65),
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number held against its limit."""

    quantity: str
    value: float
    limit: float
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Where the two sides part first, in the order of computation.

    Attributes:
        case, pass_name: in which pass; of a generation its name, and "generation".
        layer: None outside of the layers.
        operation: one of `layout`'s, "logits", or "sampling" when only a replay differs.
        error: there; of a replay the share of positions that differ.
        before: the largest error of what was computed before it in the same pass.
    """

    case: str
    pass_name: str
    layer: int | None
    operation: str
    error: float
    before: float

    @property
    def jumps(self) -> bool:
        """Whether the error is new here; otherwise it grew on the way."""
        return self.error > _JUMP * self.before

    def __str__(self) -> str:
        place = "" if self.layer is None else f"layer {self.layer}, "
        how = "jumps" if self.jumps else "grows"
        where = f"{self.pass_name} of {self.case}"
        operation = self.operation.replace("_", " ")
        return (
            f"{place}{operation} ({where}): error {how} from {self.before:.1e} to {self.error:.1e}"
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the two sides compute the same model, as far as their precision lets one see."""

    precision: str
    checks: tuple[Check, ...]
    fault: Fault | None

    @property
    def passed(self) -> bool:
        """No number is beyond its limit."""
        return all(check.passed for check in self.checks)


def precision_of(comparison: Comparison, asked: str | None = None) -> str:
    """The class to judge by: the coarser of the two sides', unless another is asked for."""
    if asked is not None:
        if asked not in PRECISIONS:
            raise ConfigError(
                f"precision is {asked!r}", hint=f"precisions: {', '.join(PRECISIONS)}"
            )
        return asked
    sides = (comparison.reference.producer, comparison.other.producer)
    return max((side.precision for side in sides), key=PRECISIONS.index)


def judge(comparison: Comparison, precision: str | None = None) -> Verdict:
    """Hold a comparison against the limits of its precision; a failing one gets a `Fault`."""
    precision = precision_of(comparison, precision)
    limits = LIMITS[precision]
    checks = tuple(_checks(comparison, limits))
    failed = not all(check.passed for check in checks)
    return Verdict(
        precision=precision,
        checks=checks,
        fault=locate(comparison, limits) if failed else None,
    )


def _checks(comparison: Comparison, limits: Limits) -> Iterator[Check]:
    worst = max(_error(each, limits) for each in operations(comparison))
    yield _at_most("operation error", worst, limits.operation)
    yield _at_most("routed elsewhere", routed_elsewhere(comparison), limits.routing)
    yield _at_most("mean KL", mean_kl(comparison), limits.kl)
    same = top_1_agreement(comparison)
    yield Check(
        quantity="top-1 agreement",
        value=same,
        limit=limits.agreement,
        passed=same >= limits.agreement,
    )
    if limits.exact_replay:
        differing = sum(each.first is not None for each in comparison.generations)
        asked = len(comparison.reference.generations)
        missing = asked - len(comparison.generations)  # its numbers were not finite
        yield _at_most("generations that differ", differing + missing, 0)


def _at_most(quantity: str, value: float, limit: float) -> Check:
    return Check(quantity=quantity, value=float(value), limit=limit, passed=bool(value <= limit))


def operations(comparison: Comparison) -> list[OperationError]:
    """Those with an error of their own; choices of experts are counted, not measured."""
    return [each for each in comparison.operations if each.operation != "experts"]


def routed_elsewhere(comparison: Comparison) -> float:
    """Share of kept tokens, over all layers, that went to another set of experts."""
    shares = [each.relative for each in comparison.operations if each.operation == "experts"]
    return float(np.mean(shares))


def mean_kl(comparison: Comparison) -> float:
    """Mean over all positions of all passes, in nats."""
    return float(np.mean(np.concatenate([each.kl for each in comparison.logits])))


def top_1_agreement(comparison: Comparison) -> float:
    """Share of all positions with the same best token."""
    shares = [each.agreement for each in comparison.logits]
    return float(np.average(shares, weights=[len(each.kl) for each in comparison.logits]))


def _error(each: OperationError, limits: Limits) -> float:
    return each.relative if limits.of_every_row else each.typical


def locate(comparison: Comparison, limits: Limits) -> Fault | None:
    """The first suspicious error that jumps; else the first one beyond its limit.

    Passes are looked at in the order in which they run, logits after the operations of theirs.
    """
    suspects = []
    for logits in comparison.logits:
        before = 0.0
        for each in operations(comparison):
            if (each.case, each.pass_name) != (logits.case, logits.pass_name):
                continue
            error = _error(each, limits)
            fault = Fault(
                case=each.case,
                pass_name=each.pass_name,
                layer=each.layer,
                operation=each.operation,
                error=error,
                before=before,
            )
            if error > limits.suspicious and fault.jumps:
                return fault
            if error > limits.operation:
                suspects.append(fault)
            before = max(before, error)
        suspects += _logit_faults(logits, limits, before)
    return next(iter(suspects), None) or _replay_fault(comparison)


def _logit_faults(logits: LogitError, limits: Limits, before: float) -> list[Fault]:
    kl = float(np.mean(logits.kl))
    if kl <= limits.kl and logits.agreement >= limits.agreement:
        return []
    where = {"case": logits.case, "pass_name": logits.pass_name}
    return [Fault(**where, layer=None, operation="logits", error=kl, before=before)]


def _replay_fault(comparison: Comparison) -> Fault | None:
    for each in comparison.generations:
        if each.first is not None:
            at = [a for a in each.agreement if (a.canvas, a.step) == each.first]
            error = 1 - min(at[0].argmax, at[0].accepted) if at else 1.0
            return Fault(
                case=each.name,
                pass_name="generation",
                layer=None,
                operation="sampling",
                error=error,
                before=0.0,
            )
    return None
