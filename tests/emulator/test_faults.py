"""Faults of memory, arithmetic and limits: reported, with the place."""

import mlx.core as mx
import pytest

from emulator import MetalError, run
from emulator.small_kernels import call, kernel

pytestmark = pytest.mark.emulator

# Memory and arithmetic. A trailing :N is the line.
MEMORY = {
    "read past an input": (
        "out[0] = x[64];",
        "out of bounds: read .* byte 256 of 'x', which has 256.*:1$",
    ),
    "read before an input": ("out[0] = x[-1 + int(x[0])];", "out of bounds: read .*'x'"),
    "write past an output": ("out[0] = 1;\nout[64] = x[0];", "out of bounds: write .*'out'.*:2$"),
    "past a threadgroup array": (
        "threadgroup float b[4];\nb[x_shape[0] / 16] = x[0];\nout[0] = 1;",
        "index outside of an array.*:2$",
    ),
    "past a threadgroup pointer": (
        "threadgroup float b[4];\nthreadgroup float* p = b;\np[4] = x[0];\nout[0] = 1;",
        "out of bounds: write .*'b', which has 16.*:3$",
    ),
    "into the next threadgroup variable": (
        "threadgroup float a[4], b[4];\nthreadgroup float* p = a;\n"
        "b[0] = 1; p[4] = x[0];\nout[0] = b[0];",
        "out of bounds: write .* byte 16 of 'a'.*:3$",
    ),
    "past a thread's array": (
        "float v[4] = {};\nfor (int i = 0; i <= x_shape[0] / 16; i++) v[i] = x[i];\nout[0] = v[0];",
        "index outside of an array.*:2$",
    ),
    "write to an input": ("((device float*)x)[3] = 1;\nout[0] = 1;", "write to the input 'x'.*:1$"),
    "misaligned vector": (
        "out[0] = 1;\nfloat4 v = *(const device float4*)(x + 1); out[0] = dot(v, v);",
        "misaligned: read of 16 bytes at byte 4 of 'x'.*:2$",
    ),
    "threadgroup memory never written": (
        "threadgroup float b[4];\nout[0] = b[3] + x[0];",
        "uninitialised read: byte 12 of 'b'.*:2$",
    ),
    "output read before it is written": (
        "out[0] += x[0];",
        "uninitialised read: byte 0 of 'out'.*:1$",
    ),
    "atomic that starts nowhere": (
        "threadgroup atomic_uint n;\n"
        "out[0] = atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed) + x[0];",
        "uninitialised read: byte 0 of 'n'.*:2$",
    ),
    "more than 32 KB": (
        "threadgroup float a[8000];\nthreadgroup float b[200];\n"
        "a[0] = x[0]; b[0] = 1; out[0] = a[0];",
        "'b' .*:2.* makes it 32800 bytes, 32768 are allowed",
    ),
    "shift by 32": (
        "out[0] = x[0];\nout[0] = 1u << (x_shape[0] / 2);",
        "shift by a negative .*:2$",
    ),
    "division by zero": ("out[0] = 5 / int(x[0]);", "division by zero.*:1$"),
    "signed overflow": ("out[0] = 2147483647 + int(x[1]);", "signed integer overflow.*:1$"),
    "NaN as an integer": ("out[0] = int(x[0] / x[0]);", "float that does not fit.*:1$"),
    "an output with a hole": ("if (x[0] > 1) out[0] = 1;", "byte 0 of the output 'out' was never"),
    "an endless loop": (
        "out[0] = 1; while (x[0] == 0.0f) { out[0] = x[1]; }",
        "timeout: thread 0 of threadgroup 0",
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_a_fault_of_memory_or_arithmetic_is_reported(name):
    body, message = MEMORY[name]
    launch = call(1, mx.arange(64).astype(mx.float32))
    with pytest.raises(MetalError, match=message):
        run(kernel(body), timeout_s=1, **launch)


def test_too_many_threads_and_too_many_buffers_are_refused():
    with pytest.raises(MetalError, match="1025 threads"):
        run(kernel("out[thread_position_in_grid.x] = x[0];"), **call(1025))
    names = [f"x{i}" for i in range(31)]
    with pytest.raises(MetalError, match="32 buffers"):
        run(kernel("out[0] = x0[0];", inputs=names), **call(1, *[mx.ones((8,))] * 31))


def test_an_output_may_be_declared_to_have_gaps_or_start_with_a_value():
    half = kernel("if (thread_position_in_grid.x % 2) out[thread_position_in_grid.x] = x[0];")
    (out,) = run(half, may_have_gaps=["out"], **call(4))
    assert mx.isnan(out).tolist() == [True, False, True, False]
    (out,) = run(half, init_value=7, **call(4))
    assert out.tolist() == [7, 0, 7, 0]


def test_a_message_names_the_line_of_a_file_that_the_source_says():
    header = (
        '#line 1 "square.metal"\ninline float at(const device float* x, int i)\n{ return x[i]; }\n'
    )
    body = '#line 8 "square.metal"\nout[0] = at(x, 64);\n'
    with pytest.raises(MetalError, match=r"at square\.metal:2$"):
        run(kernel(body, header=header), **call(1, mx.ones((64,))))


def test_a_fault_leaves_the_emulator_usable():
    with pytest.raises(MetalError):
        run(kernel("threadgroup float b[1]; b[0] = x[0]; out[0] = b[0];"), **call(64))
    (out,) = run(kernel("out[thread_position_in_grid.x] = simd_sum(x[0]);"), **call(64))
    assert out.tolist() == [0] * 64
