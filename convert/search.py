"""Choose scale and bias of each affine group by least squares, instead of from its ends.

    values [rows, width] -> groups [rows, groups, g]
      ranges to try (the group's own, and narrower ones) -> codes -> least squares -> round scale
      and bias to the file's dtype -> codes again -> squared error; the best one stays
    codes -> words of 32 bits, as `mx.quantize` lays them out

Round-to-nearest (`pack`) stays wherever nothing beats it, so no group becomes worse. Two things
are gained: a narrower range costs the few outliers and serves the many, and codes are chosen for
the scale and bias that are written, where `mx.quantize` chooses them before it rounds those.
"""

import mlx.core as mx

from mlx_diffusiongemma.convert.pack import pack, unpack
from mlx_diffusiongemma.quantization import Quantization

# Bits -> widths of the ranges to try, as parts of the group's own.
_WIDTHS = {
    2: (1.0, 0.9, 0.8, 0.7, 0.6, 0.5),
    3: (1.0, 0.93, 0.86, 0.79, 0.72),
    4: (1.0, 0.96, 0.92, 0.87, 0.82),
    5: (1.0, 0.97, 0.94),
    6: (1.0, 0.98),
    8: (1.0, 0.995),
}
_CLEARLY = 1 - 1e-5  # better by less is float32's own error
_WORD_BITS = 32


_Try = tuple[mx.array, mx.array, mx.array, mx.array]  # codes, scale, bias, squared error


def pack_searched(values: mx.array, how: Quantization) -> tuple[mx.array, ...]:
    """Weight, scales and biases of `values` [rows, width]; scales have its dtype.

    The floating-point modes have no bias and few scales to choose from: they are `pack`ed.
    """
    if not how.has_biases:
        return pack(values, how)
    nearest = pack(values, how)
    groups = values.astype(mx.float32).reshape(values.shape[0], -1, how.group_size)
    codes, scales, biases, error = _search(groups, how.bits, values.dtype)
    unpacked = unpack(nearest, how).reshape(groups.shape)
    is_better = error < _squares(unpacked - groups) * _CLEARLY
    words = pack_codes(codes, how.bits)
    nearest_words = nearest[0].reshape(words.shape)
    weight = mx.where(is_better, words, nearest_words).reshape(nearest[0].shape)
    flat = is_better[..., 0]
    return (
        weight,
        mx.where(flat, scales[..., 0].astype(values.dtype), nearest[1]),
        mx.where(flat, biases[..., 0].astype(values.dtype), nearest[2]),
    )


def pack_codes(codes: mx.array, bits: int) -> mx.array:
    """Codes [..., n] as words of 32 bits [..., n * bits / 32]: one stream of bits, lowest first."""
    codes = codes.astype(mx.uint32).reshape(*codes.shape[:-1], -1, _WORD_BITS)
    words = [mx.zeros(codes.shape[:-1], mx.uint32)] * bits
    for place in range(_WORD_BITS):
        word, shift = divmod(place * bits, _WORD_BITS)
        code = codes[..., place]
        words[word] = words[word] | mx.left_shift(code, mx.array(shift, mx.uint32))
        if shift + bits > _WORD_BITS:
            rest = mx.right_shift(code, mx.array(_WORD_BITS - shift, mx.uint32))
            words[word + 1] = words[word + 1] | rest
    return mx.stack(words, axis=-1).reshape(*codes.shape[:-2], -1)


def _search(groups: mx.array, bits: int, dtype: mx.Dtype) -> _Try:
    """Codes, scale, bias and squared error [rows, groups, 1] of the best try for each group."""
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    last = 2**bits - 1
    centre, whole = (low + high) / 2, high - low
    largest = mx.maximum(mx.abs(low), mx.abs(high))
    # Around zero: this bias is the scale times a power of two, so that rounding keeps it exact.
    symmetric = _rounded(largest * 2 / (last - 1), dtype)
    best = _try(groups, symmetric, symmetric * -(2.0 ** (bits - 1)), last)
    for width in _WIDTHS[bits]:
        scale = whole * (width / last)
        bias = centre - whole * (width / 2)
        codes = _codes(groups, scale, bias, last)
        scale, bias = _least_squares(groups, codes, scale, dtype)
        tried = _try(groups, scale, bias, last)
        best = _better(tried, best)
    return best


def _better(new: _Try, old: _Try) -> _Try:
    wins = new[3] < old[3]
    codes, scale, bias, error = (mx.where(wins, a, b) for a, b in zip(new, old, strict=True))
    return codes, scale, bias, error


def _try(groups: mx.array, scale: mx.array, bias: mx.array, last: int) -> _Try:
    codes = _codes(groups, scale, bias, last)
    return codes, scale, bias, _squares(codes * scale + bias - groups)


def _codes(groups: mx.array, scale: mx.array, bias: mx.array, last: int) -> mx.array:
    # A group of equal values has scale 0: its codes are NaN, whose error never wins.
    return mx.clip(mx.round((groups - bias) / scale), 0, last)


def _least_squares(
    groups: mx.array, codes: mx.array, scale: mx.array, dtype: mx.Dtype
) -> tuple[mx.array, mx.array]:
    """The scale and bias that serve these codes best, rounded; bias after scale is rounded."""
    mean_code = codes.mean(axis=-1, keepdims=True)
    mean = groups.mean(axis=-1, keepdims=True)
    spread = codes - mean_code
    variance = _squares(spread)
    fitted = (spread * (groups - mean)).sum(axis=-1, keepdims=True)
    fitted = mx.where(variance > 0, fitted / mx.maximum(variance, 1e-30), scale)
    fitted = _rounded(fitted, dtype)
    return fitted, _rounded(mean - fitted * mean_code, dtype)


def _rounded(values: mx.array, dtype: mx.Dtype) -> mx.array:
    return values.astype(dtype).astype(mx.float32)


def _squares(values: mx.array) -> mx.array:
    return values.square().sum(axis=-1, keepdims=True)
