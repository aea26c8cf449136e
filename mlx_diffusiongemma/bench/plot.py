"""A drawing of a sweep: accuracy against time and against passes. Needs the `plot` extra."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_diffusiongemma.bench.sweep import Point
from mlx_diffusiongemma.errors import ConfigError

_STYLE: dict[str, dict[str, Any]] = {
    "steps": {"color": "tab:blue", "marker": "o", "linestyle": "-", "label": "most steps"},
    "fast-sc": {"color": "tab:red", "marker": "D", "linestyle": "", "label": "--fast-sc"},
    "preset": {"color": "tab:orange", "marker": "s", "linestyle": "", "label": "presets"},
    "ar": {"color": "tab:green", "marker": "^", "linestyle": "", "label": "left to right"},
}
_PANELS = {
    "seconds": "median seconds for an answer",
    "passes": "mean passes for an answer: denoising steps, or tokens from left to right",
}


def require_matplotlib() -> None:
    """Raise ConfigError where matplotlib is missing: before anything is measured, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "a drawing needs matplotlib, which is not installed",
            hint="pip install 'mlx-diffusiongemma[plot]', or leave --png out",
        ) from None


def draw(points: Sequence[Point], path: Path, title: str) -> None:
    """Write a PNG with one panel for time and one for passes; bars are 95 % intervals."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, and leaves the process's backend alone
    panels = zip(figure.subplots(1, 2, sharey=True), _PANELS.items(), strict=True)
    for axes, (measure, label) in panels:
        for kind, style in _STYLE.items():
            some = [point for point in points if point.kind == kind]
            if not some:
                continue
            across = [getattr(point, measure) for point in some]
            share = [point.share for point in some]
            below = [point.share - point.low for point in some]
            above = [point.high - point.share for point in some]
            axes.errorbar(across, share, yerr=[below, above], capsize=2, markersize=6, **style)
        _name_points(axes, points, measure)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.set_xscale("log", base=2)
        axes.margins(x=0.2, y=0.1)
        axes.xaxis.set_major_formatter("{x:g}")
    figure.axes[0].set_ylabel("share of right answers")
    figure.axes[0].legend(loc="lower center")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _name_points(axes: Any, points: Sequence[Point], measure: str) -> None:
    """Write each point's name beside it; points of one kind in one place share a list of names."""
    places: dict[tuple[str, float, float], list[str]] = {}
    for point in points:
        x, y = getattr(point, measure), point.share
        near = (
            place
            for place in places
            if place[0] == point.kind
            and abs(math.log(place[1] / x)) < 0.2
            and abs(place[2] - y) < 0.02
        )
        names = places.setdefault(next(near, (point.kind, x, y)), [])
        names.append(point.name.removesuffix(" steps"))
    for (kind, x, y), names in places.items():
        left = kind == "preset"
        axes.annotate(
            ", ".join(names),
            (x, y),
            xytext=(-7, 7) if left else (7, -12),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=8,
        )
