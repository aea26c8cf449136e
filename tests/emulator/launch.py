"""One dispatch on the CPU: buffers in and out, and the runtime's verdict as an exception."""

import ctypes
import math
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from emulator.capture import MAX_BUFFERS, MAX_THREADS, Call, capture
from emulator.compiler import MetalError, build, source_line
from emulator.translate import translate

# In which order threadgroups, simdgroups and lanes run. Random order also pauses at atomics.
SCHEDULES = ("in order", "reversed", "random")
_INPUT, _OUTPUT, _OUTPUT_WITH_GAPS = range(3)
_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_POISON = 0xFF  # NaN in every float type, -1 as an integer


class _Launch(ctypes.Structure):
    """EmuLaunch of native/abi.h."""

    _fields_ = [
        ("run_thread", ctypes.c_void_p),
        ("image_begin", ctypes.c_void_p),
        ("image_end", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threadgroup", ctypes.c_uint * 3),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("access", ctypes.POINTER(ctypes.c_uint8)),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("buffer_count", ctypes.c_int),
        ("checked", ctypes.c_int),
        ("schedule", ctypes.c_int),
        ("initialised", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("timeout_seconds", ctypes.c_uint),
        ("position", ctypes.c_uint * 3),
        ("size", ctypes.c_uint * 3),
        ("full_size", ctypes.c_uint * 3),
        ("groups", ctypes.c_uint * 3),
        ("counters", ctypes.c_uint64 * 5),
        ("fault_address", ctypes.c_void_p),
        ("fault", ctypes.c_char * 1024),
    ]


class Buffer:
    """Memory between two pages that nobody may touch, up against the second one."""

    def __init__(self, name: str, size: int, access: int):
        self.name, self.size, self.access = name, size, access
        page = mmap.PAGESIZE
        self._whole = mmap.mmap(-1, (size + 15) // page * page + 3 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._whole))
        end = start + len(self._whole) - page
        _protect(start, page)
        _protect(end, page)
        self.address = end - (size + 15) // 16 * 16  # the alignment that MLX promises, and more

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The memory itself, to be read or written."""
        held = (ctypes.c_uint8 * self.size).from_address(self.address)
        return np.frombuffer(held, np.uint8) if self.size else np.empty(0, np.uint8)


def _protect(address: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


def run(
    kernel: Any,
    *,
    inputs: Sequence[Any],
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    template: Sequence[tuple[str, Any]] | None = None,
    init_value: float | None = None,
    mode: str = "checked",
    schedule: str = "in order",
    seed: int = 0,
    may_have_gaps: Sequence[str] = (),
    timeout_s: int = 60,
) -> list[mx.array]:
    """The outputs of `kernel(inputs=..., ...)`; the first group of arguments is the kernel's own.

    mode: one of MODES; only `checked` reports races, bounds and what was never written.
    may_have_gaps: outputs that the kernel need not write as a whole.
    MetalError: what the kernel did wrong, and in which line.
    """
    call = capture(
        kernel,
        inputs=inputs,
        output_shapes=output_shapes,
        output_dtypes=output_dtypes,
        grid=grid,
        threadgroup=threadgroup,
        template=template,
        init_value=init_value,
    )
    unit = translate(call, for_types=False)
    _check_limits(call, len(unit.buffers))
    names = [buffer.name for buffer in unit.buffers]
    buffers = _input_buffers(call, iter(names))
    outputs = []
    for name, shape, dtype in zip(names[len(buffers) :], output_shapes, output_dtypes, strict=True):
        access = _OUTPUT_WITH_GAPS if name in may_have_gaps else _OUTPUT
        buffer = Buffer(name, math.prod(shape) * dtype.size, access)
        fill = None if init_value is None else mx.full(shape, init_value, dtype=dtype)
        buffer.bytes()[:] = _POISON if fill is None else flat_bytes(fill)
        outputs.append(buffer)
    launch = _describe(grid, threadgroup, [*buffers, *outputs])
    launch.initialised = init_value is not None
    start(launch, build(unit.source, mode), mode, schedule, seed, timeout_s)
    return [
        _array(buffer, shape, dtype)
        for buffer, shape, dtype in zip(outputs, output_shapes, output_dtypes, strict=True)
    ]


def run_compiled(
    built: tuple[ctypes.CDLL, Path],
    inputs: Sequence[tuple[str, np.ndarray[Any, Any]]],
    outputs: Sequence[tuple[str, Sequence[int], mx.Dtype]],
    *,
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    mode: str,
    schedule: str,
    seed: int,
) -> list[mx.array]:
    """The outputs of a kernel that was compiled already, from the bytes of its inputs."""
    given, made = [], []
    for name, data in inputs:
        given.append(Buffer(name, data.nbytes, _INPUT))
        given[-1].bytes()[:] = data.reshape(-1).view(np.uint8)
    for name, shape, dtype in outputs:
        made.append(Buffer(name, math.prod(shape) * dtype.size, _OUTPUT))
        made[-1].bytes()[:] = _POISON
    launch = _describe(grid, threadgroup, [*given, *made])
    start(launch, built, mode, schedule, seed)
    return [
        _array(buffer, shape, dtype)
        for buffer, (_, shape, dtype) in zip(made, outputs, strict=True)
    ]


def start(
    launch: _Launch,
    built: tuple[ctypes.CDLL, Path],
    mode: str,
    schedule: str,
    seed: int,
    timeout_s: int = 60,
) -> None:
    """Run one dispatch to its end; MetalError says what went wrong in it."""
    library, path = built
    launch.checked = mode == "checked"
    launch.schedule = SCHEDULES.index(schedule)
    launch.seed, launch.timeout_seconds = seed, timeout_s
    if library.emu_launch(ctypes.byref(launch)):
        raise MetalError(_message(launch, path))


def _check_limits(call: Call, buffers: int) -> None:
    threads = math.prod(map(min, call.threadgroup, call.grid))
    if threads > MAX_THREADS:
        raise MetalError(f"{threads} threads in a threadgroup, Metal allows {MAX_THREADS}")
    if buffers > MAX_BUFFERS:
        raise MetalError(f"{buffers} buffers, Metal allows {MAX_BUFFERS}")


def _input_buffers(call: Call, names: Any) -> list[Buffer]:
    """Each input, followed by those of its shape, strides and dimensions that the source names."""
    buffers = []

    def add(data: np.ndarray[Any, Any]) -> None:
        buffer = Buffer(next(names), data.nbytes, _INPUT)
        buffer.bytes()[:] = data.reshape(-1).view(np.uint8)
        buffers.append(buffer)

    for array, asks in zip(call.inputs, call.asks, strict=True):
        if call.row_contiguous or array.ndim == 0:
            data, strides = flat_bytes(array), _row_strides(array.shape)
        else:
            data, strides = _as_it_lies(array)
        add(data)
        if array.ndim:
            facts = ((array.shape, np.int32), (strides, np.int64), ([array.ndim], np.int32))
            for asked, (values, kind) in zip(asks, facts, strict=True):
                if asked:
                    add(np.array(values, kind))
    return buffers


def _row_strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def flat_bytes(array: mx.array) -> np.ndarray[Any, Any]:
    """An array's memory, in the order of its rows."""
    flat = mx.contiguous(array).reshape(-1)
    if array.dtype == mx.bool_:
        return np.array(flat).view(np.uint8)
    return np.array(flat.view(mx.uint8)) if flat.size else np.empty(0, np.uint8)


def _as_it_lies(array: mx.array) -> tuple[np.ndarray[Any, Any], list[int]]:
    """The memory that a strided array spans, and its strides in elements."""
    mx.eval(array)
    view = np.asarray(memoryview(array if array.dtype == mx.bool_ else _as_bits(array)))
    strides = [stride // array.dtype.size for stride in view.strides]
    last = sum((length - 1) * stride for length, stride in zip(view.shape, strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(view, (1 + last,), (array.dtype.size,))
    return np.ascontiguousarray(flat).view(np.uint8), strides


def _as_bits(array: mx.array) -> mx.array:
    return array.view(_BITS[array.dtype.size])


def _describe(
    grid: tuple[int, int, int], threadgroup: tuple[int, int, int], buffers: list[Buffer]
) -> _Launch:
    launch = _Launch()
    count = len(buffers)
    launch.grid[:], launch.threadgroup[:] = grid, threadgroup
    launch.buffers = (ctypes.c_void_p * count)(*[buffer.address for buffer in buffers])
    launch.sizes = (ctypes.c_size_t * count)(*[buffer.size for buffer in buffers])
    launch.access = (ctypes.c_uint8 * count)(*[buffer.access for buffer in buffers])
    launch.names = (ctypes.c_char_p * count)(*[buffer.name.encode() for buffer in buffers])
    launch.buffer_count = count
    return launch


def _message(launch: _Launch, library: Path) -> str:
    text = launch.fault.decode()
    if launch.fault_address:
        place = source_line(library, launch.fault_address - launch.image_begin - 1)
        text += f" at {place}" if place else ""
    return text


def _array(buffer: Buffer, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    data = mx.array(buffer.bytes().copy())
    if dtype == mx.bool_:
        return data.astype(mx.bool_).reshape(shape)
    return (data.view(dtype) if data.size else data.astype(dtype)).reshape(shape)
