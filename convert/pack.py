"""Cast, pack and unpack slices of a tensor, as rows of numpy bits on the outside and MLX within.

    bits of rows -> to_array -> cast | pack | unpack (lazy MLX) -> to_bits -> bytes of the file

Groups of a packed tensor run along its rows, so that packing row slices and joining them gives the
same bytes as packing the tensor at once.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.quantization import Quantization

MLX_DTYPES = {
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
    "float32": mx.float32,
}


def to_array(bits: np.ndarray, dtype: str) -> mx.array:
    """The values of a slice, copied; `dtype` in safetensors' spelling (numpy knows no BF16)."""
    if dtype == "F64":
        bits = bits.astype(np.float32)  # no GPU has float64
    array = mx.array(bits)
    return array.view(mx.bfloat16) if dtype == "BF16" else array


def to_bits(array: mx.array) -> np.ndarray:
    """The evaluated values as numpy holds them, BF16 as its bits."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def pack(values: mx.array, how: Quantization) -> tuple[mx.array, ...]:
    """Round to nearest: weight, scales and, in affine mode, biases."""
    return tuple(mx.quantize(values, group_size=how.group_size, bits=how.bits, mode=how.mode))


def unpack(parts: Sequence[mx.array], how: Quantization) -> mx.array:
    """The values that weight, scales and biases stand for, in float32.

    Not in the scales' own dtype: the CPU back-end would round scale times code once more there.
    """
    weight, scales, *biases = parts
    if biases:
        scales, biases = scales.astype(mx.float32), [biases[0].astype(mx.float32)]
    return mx.dequantize(
        weight,
        scales,
        biases[0] if biases else None,
        group_size=how.group_size,
        bits=how.bits,
        mode=how.mode,
        dtype=mx.float32,
    )
