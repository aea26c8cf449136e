"""What Apple's compiler would refuse is refused here, and what it takes is taken."""

import mlx.core as mx
import pytest

from emulator import type_errors
from emulator.small_kernels import call, kernel

pytestmark = pytest.mark.emulator

REFUSED = {
    "threadgroup pointer as device": (
        "threadgroup float b[4]; device float* p = b; out[0] = p[0];",
        "different address space|device",
    ),
    "device pointer as thread": ("thread const float* p = x; out[0] = p[0];", "cannot initialize"),
    "device pointer to a function of constant ones": ("out[0] = first(x);", "no matching function"),
    "unqualified pointer": ("float v[2]; float* p = v; out[0] = p[0];", "without an address space"),
    "const dropped": ("device float* p = x; out[0] = p[0];", "const"),
    "float to bfloat": ("float a = x[0]; low[0] = a;", "no implicit conversion in Metal"),
    "sum of bfloats to bfloat, by float": ("low[0] = low[1] + 0.5f;", "no implicit conversion"),
    "double": ("double a = 1.0; out[0] = a;", "Metal has no double"),
    "unknown function": ("out[0] = metal::erf(x[0]);", "erf"),
    "atomic half": ("threadgroup atomic<half> a; out[0] = x[0];", "Metal has atomic"),
    "atomic float, bitwise": (
        "threadgroup atomic<float> a; atomic_fetch_or_explicit(&a, 1.0f, memory_order_relaxed);",
        "no matching function",
    ),
    "too few components": ("float4 v = float4(1, 2, 3); out[0] = v.x;", "number of vector comp"),
    "lambda": ("auto f = [&](float v) { return v * 2; }; out[0] = f(x[0]);", "lambda"),
    "ambiguous max": ("int a = 3; uint b = 2; out[0] = metal::max(a, b);", "ambiguous"),
    "a variable that is never set": ("float a; out[0] = a;", "uninitialized"),
    "a variable that is set in one branch": (
        "float a; if (x[0] > 0) a = 1; out[0] = a;",
        "uninitialized",
    ),
    "a statement that is none": ("out[0] = x[0]", "expected ';'"),
    "an attribute that is not asked for": ("uint t = thread_position; out[0] = t;", "undeclared"),
}
TAKEN = {
    "address spaces kept": (
        "threadgroup float b[4]; threadgroup float* p = b; const device float* q = x;\n"
        "thread float v[2]; thread float* r = v; p[0] = q[0]; r[0] = p[0]; out[0] = r[0];"
    ),
    "bfloat by a cast": "low[0] = static_cast<bfloat16_t>(float(low[1]) + 0.5f); out[0] = low[0];",
    "MLX's exp of a bfloat": "low[0] = metal::exp(low[1]);",
    "literals without a suffix": "out[0] = x[0] * 0.5 + 1e-6;",
    "atomics in both spaces": (
        "threadgroup atomic_uint a; atomic_store_explicit(&a, 0u, memory_order_relaxed);\n"
        "out[0] = atomic_fetch_max_explicit(&a, 3u, memory_order_relaxed);"
    ),
    "a template function of any space": "out[0] = any_first(x) + any_first(low);",
    "several threadgroup variables": (
        "threadgroup T a[2][3], b; threadgroup atomic_uint c[N * 2]; a[1][2] = T(0); b = a[1][2];\n"
        "atomic_store_explicit(&c[3], 0u, memory_order_relaxed); out[0] = b;"
    ),
    "a matrix of a simdgroup": (
        "simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, x, 8); simdgroup_store(m, out, 8);"
    ),
}
HEADER = """
inline float first(const constant float* p) { return p[0]; }
template <typename P> inline float any_first(P p) { return float(p[0]); }
"""


def errors_of(body: str) -> list[str]:
    launch = call(1, mx.ones((64,)), shapes=[(8,), (8,)], dtypes=[mx.float32, mx.bfloat16])
    launch["template"] = [("T", mx.float16), ("N", 2)]
    return type_errors(kernel(body, outputs=("out", "low"), header=HEADER), **launch)


@pytest.mark.parametrize("name", REFUSED)
def test_what_metal_refuses_is_refused(name):
    body, message = REFUSED[name]
    errors = errors_of(body)
    assert errors
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(errors))


@pytest.mark.parametrize("name", TAKEN)
def test_what_metal_takes_is_taken(name):
    assert errors_of(TAKEN[name]) == []


def test_small_inputs_lie_in_constant_memory():
    """MLX's rule, which makes a body compile or not by the size of an input."""
    body = kernel("const device float* p = x; out[0] = p[0];")
    assert type_errors(body, **call(1, mx.ones((8,)))) == []
    assert type_errors(body, **call(1, mx.ones((7,))))
    either_way = kernel("auto p = x; out[0] = p[0];")
    assert type_errors(either_way, **call(1, mx.ones((7,)))) == []
