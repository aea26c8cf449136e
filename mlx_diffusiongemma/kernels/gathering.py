"""MLX's product of sorted rows with packed experts, kept away from where it is wrong.

Versions of MLX multiply wrongly on some Apple GPUs, in silence: above 32,768 rows that are no
multiple of 64, inputs that are none, 128 experts on a small GPU (docs/pitfalls.md). So on a GPU
every kind of experts is probed once, when a model is loaded, and the first way that is right runs.
"""

import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

import mlx.core as mx

from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.kernels import dispatch, reference_experts
from mlx_diffusiongemma.kernels.reference_experts import PackedExperts

logger = logging.getLogger(__name__)

MOST_ROWS = 32_768  # of one piece
_TILE = 64  # rows, inputs or outputs; a remainder is another path in MLX's kernels
# One token of the released model; a canvas, and a row more; a chunk of a prompt; above MOST_ROWS.
_PROBED_ROWS = (8, 2048, 2049, 16_384, 32_800, 40_002)
_DISTINCT_ROWS = 64


class Way(Enum):
    """How rows are multiplied, the fastest first; the values are for people."""

    WHOLE = "one sorted product"
    PIECES = f"sorted products of at most {MOST_ROWS} rows"
    ROWS = "a product for each row"
    UNPACKED = "unpacked experts"


_ways: dict[tuple[Any, ...], Way] = {}


def products(rows: mx.array, experts: mx.array, packed: PackedExperts) -> mx.array:
    """As `reference_experts.products`. On a GPU, GenerationError when MLX has no right way."""
    return _MULTIPLY[way_of(packed, rows.dtype)](rows, experts, packed)


def way_of(packed: PackedExperts, dtype: mx.Dtype) -> Way:
    """The way that is right here for rows of `dtype`: probed once for each kind of experts."""
    if not dispatch.may_probe():
        return Way.WHOLE
    count, outputs, _ = packed.weight.shape
    kind = (count, outputs % _TILE, packed.weight.shape[2], *packed[3:], dtype)
    if kind not in _ways:
        _ways[kind] = _find_way(packed, dtype)
    return _ways[kind]


def _find_way(packed: PackedExperts, dtype: mx.Dtype) -> Way:
    probe = _like(packed, dtype)
    for way in Way:
        if all(_is_right(way, probe, rows, dtype) for rows in _PROBED_ROWS):
            if way is not Way.WHOLE:
                logger.warning("MLX's gather_qmm is wrong here; experts run as %s", way.value)
            return way
    raise GenerationError(
        "MLX multiplies packed experts wrongly on this device",
        hint="install another version of mlx; MLX_METAL_GPU_ARCH can choose other kernels",
    )


def _like(packed: PackedExperts, dtype: mx.Dtype) -> PackedExperts:
    """Experts of the same kind with few outputs: what they are multiplied by does not matter."""
    count, outputs, words = packed.weight.shape
    shape = (count, _TILE + outputs % _TILE, words * 32 // packed.bits)
    weight = mx.random.normal(shape, key=mx.random.key(0)).astype(dtype)
    how = packed.group_size, packed.bits
    quantized, scales, *biases = mx.quantize(weight, *how, mode=packed.mode)
    return PackedExperts(quantized, scales, biases[0] if biases else None, *how, packed.mode)


def _is_right(way: Way, packed: PackedExperts, count: int, dtype: mx.Dtype) -> bool:
    """Whether `count` rows, spread unevenly over the experts, come out as from plain products."""
    number = packed.weight.shape[0]
    weight = _unpacked(packed).astype(mx.float32)
    shape = (_DISTINCT_ROWS, weight.shape[-1])
    distinct = mx.random.normal(shape, key=mx.random.key(1)).astype(dtype)
    which = mx.arange(count) % _DISTINCT_ROWS
    position = mx.arange(count).astype(mx.float32) / count
    experts = mx.minimum(mx.floor(number * position * position), number - 1).astype(mx.uint32)
    right = distinct.astype(mx.float32) @ weight.reshape(-1, shape[1]).T
    want = right.reshape(_DISTINCT_ROWS, number, -1)[which, experts].astype(dtype)
    try:
        got = _MULTIPLY[way](distinct[which], experts, packed)
        mx.eval(got)
    except (RuntimeError, ValueError) as error:
        logger.warning("gather_qmm fails here, as %s: %s", way.value, error)
        return False
    return dispatch.agree(got, want)


def _in_pieces(rows: mx.array, experts: mx.array, packed: PackedExperts) -> mx.array:
    """A row's product does not depend on other rows, and each piece of a sorted list is sorted."""
    total = rows.shape[0]
    pieces = -(-total // MOST_ROWS)
    if pieces <= 1:
        return reference_experts.products(rows, experts, packed)
    size = -(-total // (pieces * _TILE)) * _TILE  # even pieces, so that each stays grouped
    return mx.concatenate(
        [
            reference_experts.products(rows[i : i + size], experts[i : i + size], packed)
            for i in range(0, total, size)
        ]
    )


def _row_by_row(rows: mx.array, experts: mx.array, packed: PackedExperts) -> mx.array:
    return reference_experts.products(rows, experts, packed, is_sorted=False)


def _by_unpacked(rows: mx.array, experts: mx.array, packed: PackedExperts) -> mx.array:
    weight = _unpacked(packed).astype(rows.dtype).swapaxes(-1, -2)
    return mx.gather_mm(rows[:, None], weight, rhs_indices=experts).squeeze(1)


def _unpacked(packed: PackedExperts) -> mx.array:
    weight, scales, biases, group_size, bits, mode = packed
    return mx.dequantize(weight, scales, biases, group_size, bits, mode=mode)


_MULTIPLY: dict[Way, Callable[[mx.array, mx.array, PackedExperts], mx.array]] = {
    Way.WHOLE: lambda *given: reference_experts.products(*given),
    Way.PIECES: _in_pieces,
    Way.ROWS: _row_by_row,
    Way.UNPACKED: _by_unpacked,
}
