"""The gated activation of a feed-forward, in one launch on Metal. `reference.geglu` defines it."""

import mlx.core as mx

from mlx_diffusiongemma.kernels import dispatch, reference
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch, Operation

_THREADS = 256
GEGLU = Kernel("geglu", ("gate", "up"), ("out",))


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """gelu(gate) * up, for float arrays of one shape and dtype."""
    if dispatch.uses_kernels(_GEGLU, gate, up):
        return _geglu(gate, up)[0]
    return reference.geglu(gate, up)


def geglu_halves(gate_up: mx.array) -> mx.array:
    """The same for both in one array, float [..., 2 * F] with the gates first -> [..., F]."""
    if dispatch.uses_kernels(_GEGLU_HALVES, gate_up):
        return _geglu_halves(gate_up)[0]
    return reference.geglu_halves(gate_up)


def geglu_launch(gate: mx.array, up: mx.array) -> Launch:
    """See metal/geglu.metal."""
    return _launch(gate, up, gate.shape[-1], stride=gate.shape[-1], offset=0)


def geglu_halves_launch(gate_up: mx.array) -> Launch:
    """See metal/geglu.metal."""
    width = gate_up.shape[-1] // 2
    return _launch(gate_up, gate_up, width, stride=2 * width, offset=width)


def _launch(gate: mx.array, up: mx.array, width: int, *, stride: int, offset: int) -> Launch:
    rows = gate.size // stride
    return Launch(
        GEGLU,
        (gate, up),
        (("T", gate.dtype), ("F", width), ("STRIDE", stride), ("OFFSET", offset)),
        grid=(width, rows, 1),
        threadgroup=(min(width, _THREADS), 1, 1),
        output_shapes=((*gate.shape[:-1], width),),
        output_dtypes=(gate.dtype,),
    )


def _geglu(gate: mx.array, up: mx.array) -> list[mx.array]:
    return list(dispatch.run(geglu_launch(gate, up)))


def _geglu_halves(gate_up: mx.array) -> list[mx.array]:
    return list(dispatch.run(geglu_halves_launch(gate_up)))


def _trial(*arrays: mx.array) -> tuple[mx.array, ...]:
    return tuple(
        mx.random.normal(array.shape, key=mx.random.key(seed)).astype(array.dtype)
        for seed, array in enumerate(arrays)
    )


_GEGLU = Operation("geglu", _geglu, lambda *both: [reference.geglu(*both)], _trial)
_GEGLU_HALVES = Operation(
    "geglu_halves", _geglu_halves, lambda both: [reference.geglu_halves(both)], _trial
)
