"""Plots as SVG text, for one page without scripts: lines, bars and a map of errors.

Colours are classes (`c0` to `c5`) and CSS variables of the page, so that both its themes fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 16, 46
_COLOURS = 6
_CELL = 20


@dataclass(frozen=True)
class Series:
    """One line: its name and a value for each x; None leaves a gap."""

    name: str
    values: Sequence[float | None]


class _Scale:
    """From values to pixels of a plot's height, linear or logarithmic."""

    def __init__(self, low: float, high: float, *, is_log: bool):
        self._is_log = is_log
        if is_log:
            low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
            high = max(high, low + 1)
        self._low, self._high = low, high

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self._is_log else value
        share = (at - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - min(max(share, 0.0), 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[tuple[float, str]]:
        """Values to mark, with their labels."""
        if self._is_log:
            powers = range(int(self._low), int(self._high) + 1)
            step = max(1, len(powers) // 7)
            return [(10.0**power, f"1e{power}") for power in powers[::step]]
        return [
            (self._low + (self._high - self._low) * part / 4, f"{100 * part / 4:.0f} %")
            for part in range(5)
        ]


def line_plot(
    series: Sequence[Series],
    labels: Sequence[str],
    *,
    x_name: str,
    is_log: bool,
    limit: float | None = None,
    borders: Sequence[int] = (),
) -> str:
    """Lines over shared x values: on a logarithmic axis, or as shares from 0 to 1.

    `limit` is drawn as a dashed line; `borders` are x values after which a new part begins.
    """
    values = [v for each in series for v in each.values if v is not None and math.isfinite(v)]
    positive = [value for value in values if value > 0] + ([limit] if limit else [])
    floor = min(positive, default=1e-9)
    scale = _Scale(floor, max(positive, default=1.0), is_log=True) if is_log else _linear()
    places = _places(len(labels))
    parts = [*_axes(scale, labels, places, x_name)]
    for border in borders:
        x = (places[border] + places[border + 1]) / 2
        parts.append(f'<line class="border" {_line(x, _TOP, x, _HEIGHT - _BOTTOM)}/>')
    if limit is not None:
        y = scale(limit)
        parts.append(f'<line class="limit" {_line(_LEFT, y, _WIDTH - _RIGHT, y)}/>')
        parts.append(f'<text x="{_LEFT + 6}" y="{y - 5:.1f}">limit {limit:g}</text>')
    for number, each in enumerate(series):
        parts += _one_line(number, each, labels, places, scale, floor if is_log else 0.0)
    return _svg(_WIDTH, _HEIGHT, parts)


def _linear() -> _Scale:
    return _Scale(0.0, 1.0, is_log=False)


def _one_line(
    number: int,
    series: Series,
    labels: Sequence[str],
    places: Sequence[float],
    scale: _Scale,
    floor: float,
) -> list[str]:
    colour = f"c{number % _COLOURS}"
    parts, run = [], ""
    for label, x, value in zip(labels, places, series.values, strict=True):
        if value is None:
            run = ""
            continue
        shown = max(value, floor) if math.isfinite(value) else math.inf
        y = scale(shown) if math.isfinite(shown) else float(_TOP)
        if run:
            parts.append(f'<path class="line {colour}" d="M{run} L{x:.1f},{y:.1f}"/>')
        run = f"{x:.1f},{y:.1f}"
        title = f"{escape(series.name)}, {escape(label)}: {value:.3g}"
        parts.append(
            f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{title}</title></circle>"
        )
    y = _TOP + 60 + 18 * number
    parts.append(f'<rect class="dot {colour}" x="{_WIDTH - _RIGHT + 8}" y="{y - 9}" {_box(10)}/>')
    parts.append(f'<text x="{_WIDTH - _RIGHT + 24}" y="{y}">{escape(series.name)}</text>')
    return parts


def histogram(counts: Sequence[int], labels: Sequence[str], *, x_name: str) -> str:
    """Bars of counts, one for each label."""
    most = max([*counts, 1])
    places = _places(len(counts))
    half = 0.42 * (places[1] - places[0] if len(places) > 1 else 60)
    ground = _HEIGHT - _BOTTOM
    parts = [*_x_axis(labels, places, x_name)]
    for label, x, count in zip(labels, places, counts, strict=True):
        height = count / most * (ground - _TOP - 14)
        parts.append(
            f'<rect class="bar c0" x="{x - half:.1f}" y="{ground - height:.1f}" '
            f'width="{2 * half:.1f}" height="{height:.1f}">'
            f"<title>{escape(label)}: {count}</title></rect>"
        )
        if count:
            parts.append(
                f'<text class="middle" x="{x:.1f}" y="{ground - height - 4:.1f}">{count}</text>'
            )
    return _svg(_WIDTH, _HEIGHT, parts)


def error_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    worst: tuple[int, int] | None,
) -> str:
    """Cells shaded by the logarithm of their error, 1e-8 and less to 1; `worst` gets a frame."""
    left, top, cell = 46, 84, _CELL
    parts = []
    for column, name in enumerate(columns):
        x = left + 2 * cell * column + cell
        parts.append(
            f'<text transform="translate({x},{top - 8}) rotate(-40)">{escape(name)}</text>'
        )
    for row, name in enumerate(rows):
        y = top + cell * row
        parts.append(f'<text class="end" x="{left - 6}" y="{y + 14}">{escape(name)}</text>')
        for column, value in enumerate(values[row]):
            if value is None:
                continue
            strength = min(max((math.log10(max(value, 1e-8)) + 8) / 8, 0.02), 1.0)
            frame = " fault" if worst == (row, column) else ""
            parts.append(
                f'<rect class="cell{frame}" x="{left + 2 * cell * column}" y="{y}" '
                f'width="{2 * cell - 2}" height="{cell - 2}" fill-opacity="{strength:.2f}">'
                f"<title>{escape(name)}, {escape(columns[column])}: {value:.2e}</title></rect>"
            )
    width = left + 2 * cell * len(columns) + 100
    return _svg(width, top + cell * len(rows) + 8, parts)


def _places(count: int) -> list[float]:
    room = _WIDTH - _LEFT - _RIGHT
    return [_LEFT + room * (index + 0.5) / count for index in range(count)]


def _axes(scale: _Scale, labels: Sequence[str], places: Sequence[float], x_name: str) -> list[str]:
    parts = _x_axis(labels, places, x_name)
    for value, label in scale.ticks():
        y = scale(value)
        parts.append(f'<line class="grid" {_line(_LEFT, y, _WIDTH - _RIGHT, y)}/>')
        parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{label}</text>')
    return parts


def _x_axis(labels: Sequence[str], places: Sequence[float], x_name: str) -> list[str]:
    ground = _HEIGHT - _BOTTOM
    every = max(1, math.ceil(len(labels) / 18))
    parts = [f'<line class="axis" {_line(_LEFT, ground, _WIDTH - _RIGHT, ground)}/>']
    for index in range(0, len(labels), every):
        label = escape(labels[index])
        parts.append(
            f'<text class="middle" x="{places[index]:.1f}" y="{ground + 16}">{label}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="middle" x="{middle}" y="{ground + 36}">{escape(x_name)}</text>')
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'


def _box(size: int) -> str:
    return f'width="{size}" height="{size}"'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px">\n{inside}\n</svg>'
