"""Templates with holes: fixed text around places that the model fills.

Name: <fill>     Born: <fill:regex:\\d{4}>     Sex: <fill:choices:f|m>
"""

from mlx_diffusiongemma.constraints.constraint import CanvasConstraint
from mlx_diffusiongemma.errors import ConstraintError

_MARKER = "<fill"
_FREE = r"[^\n]*"


def open_scaffold(template: str) -> CanvasConstraint:
    """The template with its holes open: a free hole holds text on one line.

    ConstraintError when it has no hole, or one that cannot be read.
    """
    spans, rest, holes = [], template, 0
    while (at := rest.find(_MARKER)) >= 0:
        spans.append(CanvasConstraint.text(rest[:at]))
        hole, rest = _hole(rest[at + len(_MARKER) :])
        spans.append(hole)
        holes += 1
    if not holes:
        raise ConstraintError(
            "the scaffold has no hole",
            hint="write <fill>, <fill:regex:PATTERN> or <fill:choices:a|b> where the model writes",
        )
    whole = CanvasConstraint()
    for span in [*spans, CanvasConstraint.text(rest)]:
        whole = whole + span
    return whole


def _hole(rest: str) -> tuple[CanvasConstraint, str]:
    """What the hole allows, and the text behind it; `rest` begins behind its `<fill`."""
    line = rest.partition("\n")[0]
    if line.startswith(">"):
        return CanvasConstraint.regex(_FREE), rest[1:]
    inside, closed, _ = line.partition(">")
    kind, _, content = inside.removeprefix(":").partition(":")
    if not closed or not content or _MARKER in content or kind not in ("regex", "choices"):
        raise ConstraintError(
            f"the scaffold has a hole that cannot be read: {_MARKER + line[:40]!r}",
            hint="holes are <fill>, <fill:regex:PATTERN> and <fill:choices:a|b>; no > inside",
        )
    behind = rest[len(inside) + len(closed) :]
    if kind == "regex":
        return CanvasConstraint.regex(content), behind
    return CanvasConstraint.choices(content.split("|")), behind
