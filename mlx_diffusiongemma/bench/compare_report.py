"""A comparison in lines for people and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mlx_diffusiongemma.bench.compare import OURS, RATIOS, THEIRS, Answer, Row, Spread, ratios

_WORDS = {
    "step_seconds": "time of a pass",
    "step_cpu_seconds": "CPU time of a pass",
    "seconds": "time of an answer",
    "tokens_per_second": "tokens/s",
}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as lines of a Markdown table; times are medians."""
    yield (
        "| way | right | tokens/s | ms a pass (quartiles) | steps a canvas | passes "
        "| ms a prompt | s an answer (quartiles) | peak MB |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        right = "not checked" if row.right is None else f"{row.right}/{row.count}"
        canvas = "" if row.steps_per_canvas is None else f"{row.steps_per_canvas:.2f}"
        yield (
            f"| {row.name} | {right} | {row.tokens_per_second:.1f} | {_spread(row.step, 1e3, 1)} "
            f"| {canvas} | {row.passes:.1f} | {row.prompt[1] * 1e3:.1f} "
            f"| {_spread(row.answer, 1, 3)} | {row.peak_bytes / 1e6:.1f} |"
        )


def ratio_lines(answers: Mapping[str, Sequence[Answer]], *, on_cpu: bool) -> Iterator[str]:
    """The first way by each other one, within prompts. On a GPU the CPU's time says nothing."""
    first, *others = answers
    for other in others:
        found = ratios(answers[first], answers[other])
        parts = [
            f"{_WORDS[name]} {_spread(found[name], 1, 2)}"
            for name in RATIOS
            if on_cpu or name != "step_cpu_seconds"
        ]
        yield f"{first} / {other}: {', '.join(parts)}"


def notes(
    hellos: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Sequence[Answer]],
    machine: str,
    *,
    together: bool,
) -> list[str]:
    """What must be known to read the numbers."""
    ours = hellos[OURS]
    first, *others = answers
    lines = [
        f"machine: {machine}; MLX computes on the {ours['device']}, in {ours['dtype']}",
        *(f"{who['name']} {who['version']} on mlx {who['mlx']}" for who in hellos.values()),
        "ratios are medians over prompts, with quartiles; below 1 is better, for tokens/s above 1",
    ]
    if THEIRS in hellos:
        lines += [
            *(_shared(first, other, answers) for other in others),
            "our times hold the work of turning tokens into text, those of mlx-vlm do not",
        ]
        if len({who["mlx"] for who in hellos.values()}) > 1:
            lines.append("the sides have different versions of MLX: part of a ratio may be theirs")
    else:
        lines.append("no mlx-vlm beside it: --peer PYTHON names an interpreter that has it")
    if not together:
        lines.append("one side at a time was in memory, so the sides took long turns")
    return lines


def _shared(first: str, other: str, answers: Mapping[str, Sequence[Answer]]) -> str:
    """How often both said the same: where they do, they took the same steps."""
    pairs = list(zip(answers[first], answers[other], strict=True))
    same = sum(list(one.token_ids) == list(two.token_ids) for one, two in pairs)
    return f"{other}: {same} of {len(pairs)} answers are those of {first}, token for token"


def report(
    rows: Sequence[Row],
    answers: Mapping[str, Sequence[Answer]],
    hellos: Mapping[str, Mapping[str, Any]],
    said: Sequence[str],
) -> dict[str, Any]:
    """Everything as JSON: rows, ratios as [quartile, median, quartile], and every answer's cost."""
    first, *others = answers
    return {
        "notes": list(said),
        "workers": dict(hellos),
        "rows": [asdict(row) for row in rows],
        "ratios": {
            f"{first} / {other}": ratios(answers[first], answers[other]) for other in others
        },
        "answers": {name: [asdict(answer) for answer in some] for name, some in answers.items()},
    }


def _spread(values: Spread, scale: float, digits: int) -> str:
    low, middle, high = (f"{value * scale:.{digits}f}" for value in values)
    return f"{middle} ({low} - {high})"
