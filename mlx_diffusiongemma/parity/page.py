"""A judged comparison as one HTML page: it needs no network, no script and no other file."""

from collections.abc import Iterator
from html import escape

import numpy as np

from mlx_diffusiongemma.parity.comparison import Comparison, GenerationDifference
from mlx_diffusiongemma.parity.layout import LAYER_OPERATIONS
from mlx_diffusiongemma.parity.plots import Series, error_map, histogram, line_plot
from mlx_diffusiongemma.parity.report import (
    describe,
    generation_line,
    same_weights,
    worst_by_operation,
)
from mlx_diffusiongemma.parity.verdict import LIMITS, Verdict

_DRAWN = ("queries", "attention", "router_scores", "dense", "routed", "output")
_MEASURED = tuple(name for name in LAYER_OPERATIONS if name != "experts")
_LOWEST = -12  # power of ten; KL below it is rounding
_STYLE = """
:root { --ink: #1d2126; --soft: #68717c; --paper: #fff; --rule: #dde1e6; --good: #1a7f37;
  --bad: #c62828; --k0: #2563eb; --k1: #d97706; --k2: #7c3aed; --k3: #059669; --k4: #db2777;
  --k5: #475569 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #98a2ad; --paper: #15181c;
  --rule: #31373e; --good: #4ac26b; --bad: #ff7b72; --k0: #6ea8fe; --k1: #f0a64a; --k2: #b392f0;
  --k3: #4fd1a5; --k4: #f472b6; --k5: #a3b1c2 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 780px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: .2em } h2 { font-size: 1.1em; margin-top: 2em }
.pass { color: var(--good) } .fail { color: var(--bad) } .note { color: var(--soft) }
.found { border-left: 4px solid var(--bad); padding: .3em .8em; font-weight: 600 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .15em .7em .15em 0; text-align: right; border-bottom: 1px solid var(--rule) }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
svg { width: 100%; height: auto; display: block } svg text { font-size: 12px; fill: var(--soft) }
.middle { text-anchor: middle } .end { text-anchor: end } .grid, .border { stroke: var(--rule) }
.border { stroke-dasharray: 2 3 } .axis { stroke: var(--soft) }
.limit { stroke: var(--bad); stroke-dasharray: 6 4 } .line { fill: none; stroke-width: 1.6 }
.c0 { --c: var(--k0) } .c1 { --c: var(--k1) } .c2 { --c: var(--k2) } .c3 { --c: var(--k3) }
.c4 { --c: var(--k4) } .c5 { --c: var(--k5) } .line { stroke: var(--c) }
.dot, .bar { fill: var(--c) } .cell { fill: var(--k0) }
.fault { stroke: var(--bad); stroke-width: 3 }
"""


def as_page(comparison: Comparison, verdict: Verdict) -> str:
    """The whole page."""
    body = "\n".join(
        (*_head(comparison, verdict), *_layers(comparison, verdict), *_numbers(comparison))
    )
    title = f"Parity: {'pass' if verdict.passed else 'fail'} as {verdict.precision}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n"
        "</html>\n"
    )


def _head(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    kind = "pass" if verdict.passed else "fail"
    yield f'<h1>Parity: <span class="{kind}">{kind.upper()}</span> as {verdict.precision}</h1>'
    files = "the same files" if same_weights(comparison) else "other files of weights"
    yield f"<p>Reference: {escape(describe(comparison.reference))}<br>"
    yield f"Compared: {escape(describe(comparison.other))}; {files}</p>"
    if verdict.fault is not None:
        yield f'<p class="found">First fault: {escape(str(verdict.fault))}</p>'
    yield '<div class="wide"><table><tr><th>check</th><th>value</th><th>limit</th><th></th></tr>'
    for check in verdict.checks:
        kind = "pass" if check.passed else "fail"
        relation = "at least" if check.quantity == "top-1 agreement" else "at most"
        yield (
            f"<tr><td>{check.quantity}</td><td>{check.value:.2g}</td>"
            f'<td>{relation} {check.limit:g}</td><td class="{kind}">{kind}</td></tr>'
        )
    yield "</table></div>"


def _layers(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    count = len(comparison.reference.model.architecture.head_dims)
    worst: dict[tuple[int | None, str], float] = {}
    for each in comparison.operations:
        key = each.layer, each.operation
        worst[key] = max(worst.get(key, 0.0), each.relative)
    labels = [str(layer) for layer in range(count)]
    yield "<h2>Error by layer</h2>"
    yield (
        '<p class="note">Root mean square error as a share of the reference\'s, the worst of all '
        "passes. The limit counts "
        + ("every kept token" if LIMITS[verdict.precision].of_every_row else "the typical token")
        + ".</p>"
    )
    drawn = [
        Series(name.replace("_", " "), [worst[layer, name] for layer in range(count)])
        for name in _DRAWN
    ]
    limit = LIMITS[verdict.precision].operation
    yield line_plot(drawn, labels, x_name="layer", is_log=True, limit=limit)
    fault, framed = verdict.fault, None
    if fault is not None and fault.layer is not None and fault.operation in _MEASURED:
        framed = fault.layer, _MEASURED.index(fault.operation)
    values = [[worst[layer, name] for name in _MEASURED] for layer in range(count)]
    columns = [name.replace("_", " ") for name in _MEASURED]
    yield '<p class="note">In the order of computation: the stronger, the further off.</p>'
    yield error_map(labels, columns, values, worst=framed)


def _numbers(comparison: Comparison) -> Iterator[str]:
    kl = np.concatenate([each.kl for each in comparison.logits])
    powers = np.floor(np.log10(np.maximum(kl, 10.0**_LOWEST)))
    powers = np.clip(np.where(np.isfinite(powers), powers, 1), _LOWEST, 1).astype(int)
    bins = list(range(int(powers.min()), int(powers.max()) + 1))
    yield "<h2>KL divergence of each position, in nats</h2>"
    counts = [int((powers == power).sum()) for power in bins]
    names = [f"1e{power}" for power in bins]
    yield histogram(counts, names, x_name="KL of this size and up to ten times more")
    yield "<h2>Agreement by step of replayed generations</h2>"
    for replay in comparison.generations:
        yield f"<p>{escape(generation_line(replay))}</p>"
        yield _replay_plot(replay)
    if not comparison.generations:
        yield '<p class="note">None could be replayed.</p>'
    yield "<h2>Worst error of each operation</h2>"
    yield '<div class="wide"><table><tr><th>operation</th><th>largest</th><th>rms</th>'
    yield "<th>relative</th><th>typical</th><th>where</th></tr>"
    for each in worst_by_operation(comparison):
        numbers = (each.max_error, each.rms_error, each.relative, each.typical)
        cells = "".join(f"<td>{number:.1e}</td>" for number in numbers)
        place = "" if each.layer is None else f"layer {each.layer}, "
        where = escape(f"{place}{each.pass_name} of {each.case}")
        yield f"<tr><td>{each.operation.replace('_', ' ')}</td>{cells}<td>{where}</td></tr>"
    yield "</table></div>"


def _replay_plot(each: GenerationDifference) -> str:
    steps = each.agreement
    labels = [f"{step.canvas + 1}.{step.step + 1}" for step in steps]
    pairs = zip(steps, steps[1:], strict=False)
    borders = [index for index, (one, two) in enumerate(pairs) if one.canvas != two.canvas]
    series = [
        Series("best tokens", [step.argmax for step in steps]),
        Series("accepted", [step.accepted for step in steps]),
    ]
    return line_plot(series, labels, x_name="canvas.step", is_log=False, borders=borders)
