"""The products with packed experts: MLX's own, or kernels of ours for GPUs before the M5.

    rows by expert --> gated_products --> hidden --> down_products --> outputs, by expert

`reference_experts` has the definitions. What runs is MLX's sorted `gather_qmm`, unless the
environment names one of our ways: only a Mac can say which is faster.
"""

import os
from collections.abc import Callable
from functools import partial

import mlx.core as mx

from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.kernels import (
    activation,
    dispatch,
    gathering,
    reference,
    reference_experts,
    residual,
)
from mlx_diffusiongemma.kernels.choices import STOCK
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation
from mlx_diffusiongemma.kernels.reference import Routing, RowNorm
from mlx_diffusiongemma.kernels.reference_experts import PackedExperts

CHOICE = "DGEMMA_EXPERT_MATMUL"  # environment variable: STOCK or one of WAYS
WAYS = ("staged", "fragments")
GROUPED_ROWS = 4  # for each expert: with fewer, MLX multiplies row by row
_TILES = (16, 32)  # rows of a tile, for few rows an expert and for many
_THREADS = 128
_THREADGROUP_BYTES = 32 * 1024
_INPUTS = (256, 128)  # in threadgroup memory at once, where x alone goes through it
_COLUMNS = {"F": 32, "N": 64}  # of out for a threadgroup
_PACKED = ("offsets", "weight", "scales", "biases")
GATED = {
    way: Kernel(
        f"gate_up_{way}",
        ("x", "tokens", *_PACKED),
        ("out",),
        ("expert_functions", f"{way}_functions"),
    )
    for way in WAYS
}
DOWN = {
    way: Kernel(f"down_{way}", ("x", *_PACKED), ("out",), ("expert_functions", f"{way}_functions"))
    for way in WAYS
}
_STAGE_INPUTS = (GATED["fragments"], DOWN["fragments"])


def gated_products(
    x: mx.array, routing: Routing, packed: PackedExperts, norm: RowNorm | None = None
) -> mx.array:
    """gelu(gate) * up of every pair; see `reference_experts`. ConfigError for an unknown choice.

    Where a norm of x is still to be taken, that is done as its rows are gathered.
    """
    way = _way(_GATED, x, packed, routing)
    if way != STOCK:
        if norm is not None:
            x = residual.gather_normed(x, norm, mx.arange(x.shape[0], dtype=mx.uint32))
        return dispatch.run(gated_launch(way, x, routing, packed))[0]
    tokens, experts = (_grouped(rows, packed) for rows in (routing.tokens, routing.sorted_experts))
    rows = x[tokens] if norm is None else residual.gather_normed(x, norm, tokens)
    both = gathering.products(rows, experts, packed)[: routing.tokens.size]
    return activation.geglu_halves(both)


def down_products(hidden: mx.array, routing: Routing, packed: PackedExperts) -> mx.array:
    """What experts make of their rows; see `reference_experts`. ConfigError as above."""
    way = _way(_DOWN, hidden, packed, routing)
    if way != STOCK:
        return dispatch.run(down_launch(way, hidden, routing, packed))[0]
    rows, experts = (_grouped(rows, packed) for rows in (hidden, routing.sorted_experts))
    return gathering.products(rows, experts, packed)[: hidden.shape[0]]


def chosen_way() -> str | None:
    """What the environment asks for: STOCK, one of WAYS, or None. ConfigError for another name."""
    choice = os.environ.get(CHOICE)
    if choice is not None and choice not in (STOCK, *WAYS):
        raise ConfigError(
            f"{CHOICE} is {choice!r}", hint=f"it may be {', '.join((STOCK, *WAYS))}, or unset"
        )
    return choice


def _way(
    operations: dict[str, Operation], x: mx.array, packed: PackedExperts, routing: Routing
) -> str:
    """The one decision how rows of `x` and these experts are multiplied."""
    if not _has_kernels(x, packed):
        chosen_way()  # a wrong name is an error for all
        return STOCK
    tile = _tile_rows(routing.sorted_experts.size, packed)
    site = "gated_products" if operations is _GATED else "down_products"
    way = chosen_way() or dispatch.choose(site, operations, x, packed, tile)
    if way == STOCK:
        return STOCK
    return way if dispatch.uses_kernels(operations[way], x, packed, tile) else STOCK


def _has_kernels(x: mx.array, packed: PackedExperts) -> bool:
    is_affine = packed.mode == "affine" and packed.biases is not None
    return is_affine and packed.bits in (4, 8) and mx.issubdtype(x.dtype, mx.floating)


def _grouped(rows: mx.array, packed: PackedExperts) -> mx.array:
    """`rows` with the last one repeated, where that keeps MLX on Metal to its grouped product.

    It leaves that for one product a row below four rows an expert. From one row an expert on, the
    smallest canvas of the released model, experts are shared and grouping spares reading them
    again; below, as in writing token by token, it would only add rows.
    """
    experts, count = packed.weight.shape[0], rows.shape[0]
    if not dispatch.plans_for_metal() or not experts <= count < GROUPED_ROWS * experts:
        return rows
    return rows[mx.minimum(mx.arange(GROUPED_ROWS * experts), count - 1)]


def gated_launch(way: str, x: mx.array, routing: Routing, packed: PackedExperts) -> Launch:
    """See metal/gate_up_<way>.metal."""
    width = packed.weight.shape[1] // 2
    inputs = (x, routing.tokens, routing.offsets)
    return _launch(GATED[way], inputs, packed, ("F", width), routing.tokens.size)


def down_launch(way: str, hidden: mx.array, routing: Routing, packed: PackedExperts) -> Launch:
    """See metal/down_<way>.metal."""
    outputs = packed.weight.shape[1]
    inputs = (hidden, routing.offsets)
    return _launch(DOWN[way], inputs, packed, ("N", outputs), hidden.shape[0])


def _launch(
    kernel: Kernel,
    inputs: tuple[mx.array, ...],
    packed: PackedExperts,
    outputs: tuple[str, int],
    pairs: int,
) -> Launch:
    x, (name, width), experts = inputs[0], outputs, packed.weight.shape[0]
    assert packed.biases is not None
    rows = _tile_rows(pairs, packed)
    columns = _COLUMNS[name]
    return Launch(
        kernel,
        (*inputs, packed.weight, packed.scales, packed.biases),
        (
            *(("T", x.dtype), ("E", experts), ("K", x.shape[-1]), (name, width)),
            *(("BITS", packed.bits), ("GROUP", packed.group_size), ("ROWS", rows)),
            *((("INPUTS", _inputs(x.dtype, rows)),) if kernel in _STAGE_INPUTS else ()),
        ),
        grid=(_THREADS * -(-width // columns), most_tiles(pairs, experts, rows), 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=((pairs, width),),
        output_dtypes=(x.dtype,),
    )


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Tiles of so many rows that pairs can make, however they are spread over the experts."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def _tile_rows(pairs: int, packed: PackedExperts) -> int:
    few, many = _TILES
    return many if pairs >= many * packed.weight.shape[0] else few


def _inputs(dtype: mx.Dtype, rows: int) -> int:
    """How many inputs of a tile's rows threadgroup memory holds, with room for eight rows more."""
    return next(n for n in _INPUTS if n * (rows + 8) * dtype.size <= _THREADGROUP_BYTES)


def _trial(x: mx.array, packed: PackedExperts, tile: int) -> tuple[object, ...]:
    """With the real experts, which are there already, and rows that make tiles of that size."""
    experts = packed.weight.shape[0]
    pairs = experts * tile  # as many rows an expert as a canvas of the released model has, or more
    scores, rows = (
        mx.random.normal((pairs, width), key=mx.random.key(width))
        for width in (experts, x.shape[-1])
    )
    return rows.astype(x.dtype), reference.route(scores, mx.ones((experts,)), 1), packed


def _operations(
    name: str,
    launch: Callable[[str, mx.array, Routing, PackedExperts], Launch],
    twin: Callable[[mx.array, Routing, PackedExperts], mx.array],
) -> dict[str, Operation]:
    def ours(way: str, x: mx.array, routing: Routing, packed: PackedExperts) -> list[mx.array]:
        return list(dispatch.run(launch(way, x, routing, packed)))

    def plain(x: mx.array, routing: Routing, packed: PackedExperts) -> list[mx.array]:
        return [twin(x, routing, packed)]

    return {
        way: Operation(f"{name}, {way}", partial(ours, way), plain, _trial, False, on_cuda=False)
        for way in WAYS
    }


_GATED = _operations("gated_products", gated_launch, reference_experts.gated_products)
_DOWN = _operations("down_products", down_launch, reference_experts.down_products)
