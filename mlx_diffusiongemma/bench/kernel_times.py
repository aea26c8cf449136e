"""How long our kernels and MLX's operations take at the released model's sizes, site by site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.bench import ledger
from mlx_diffusiongemma.kernels import (
    PackedExperts,
    Routing,
    choices,
    dispatch,
    reference,
    tuning,
)
from mlx_diffusiongemma.mlx_build import find_build

_SPREAD = 0.05  # of random weights


def released_sites(context: int = ledger.CONTEXT) -> list[dispatch.Site]:
    """Every site of one denoising step, as the ledger traces it: shapes, and no numbers."""
    with dispatch.meeting() as met:
        ledger.count_ours(context)
    by_name = {site.name: site for site in met}
    return [replace(site, arguments=_filled(site.arguments)) for site in by_name.values()]


def _filled(value: Any) -> Any:
    """Numbers in place of a graph's placeholders: random weights, a routing that is one."""
    if isinstance(value, Routing):
        (tokens, top_k), experts = value.experts.shape, value.offsets.size - 1
        scores = mx.random.normal((tokens, experts), key=mx.random.key(0))
        return reference.route(scores, mx.ones((experts,)), top_k)
    if isinstance(value, PackedExperts):
        # Keys are random bits; whole numbers drawn from a range have few random ones at the end.
        drawn = mx.random.split(mx.random.key(0), value.weight.size // 2)
        return PackedExperts(drawn.reshape(value.weight.shape), *map(_filled, value[1:]))
    if isinstance(value, tuple):
        parts = [_filled(part) for part in value]
        return type(value)(*parts) if type(value) is not tuple else tuple(parts)
    if not isinstance(value, mx.array):
        return value
    if not mx.issubdtype(value.dtype, mx.floating):
        return mx.zeros(value.shape, value.dtype)
    return (_SPREAD * mx.random.normal(value.shape, key=mx.random.key(1))).astype(value.dtype)


def report(
    sites: Mapping[str, Mapping[str, tuning.Candidate]],
    *,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """For JSON: the machine, and of every site the milliseconds, what was banned and what wins."""
    found = {
        name: tuning.tune(candidates, rounds=rounds, clock=clock).as_fields()
        for name, candidates in sites.items()
    }
    build = find_build()._asdict()
    return {"machine": choices.machine(), "build": build, "rounds": rounds, "sites": found}


def table(found: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """A line for every site: MLX's own time, and that of each candidate as a share of it."""
    lines = []
    for name, site in found.items():
        own, *rest = site["milliseconds"].items()
        shares = [f"{one} {each / own[1]:.2f}" for one, each in rest]
        bans = [f"{one} {reason}" for one, reason in site["banned"].items()]
        lines.append(f"{name}: {own[1]:.3f} ms, {', '.join(shares + bans)}")
    return lines
