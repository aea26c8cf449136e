"""Races and divergence: reported whatever the order of threads, with the place.

A race need not show in the result, and need not happen. Beside each fault stands the right version,
where the emulator must be silent.
"""

import pytest

from emulator import SCHEDULES, MetalError, run
from emulator.small_kernels import call, kernel

pytestmark = pytest.mark.emulator
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
EXCHANGE = """uint t = thread_position_in_grid.x;
threadgroup float b[64];
b[t] = x[t];
{}
out[t] = b[63 - t];"""
DEVICE_EXCHANGE = """uint t = thread_position_in_grid.x;
out[t] = x[t];
threadgroup_barrier(mem_flags::{});
float v = out[63 - t];
threadgroup_barrier(mem_flags::mem_device);
out[t] = v;"""
TWICE = """uint t = thread_position_in_grid.x;
threadgroup float b[64];
b[t] = x[t];
threadgroup_barrier(mem_flags::mem_threadgroup);
float v = b[63 - t];
{}
b[t] = v + 1;
out[t] = b[t];"""
SUM_OF_ALL = """threadgroup atomic_uint n;
uint t = thread_position_in_grid.x;
if (t == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);
threadgroup_barrier(mem_flags::mem_threadgroup);
atomic_fetch_add_explicit(&n, uint(x[t]), memory_order_relaxed);
{}
out[t] = atomic_load_explicit(&n, memory_order_relaxed);"""
COUNT = """threadgroup {kind} n[1];
uint t = thread_position_in_grid.x;
if (t == 0) {zero};
threadgroup_barrier(mem_flags::mem_threadgroup);
{add};
threadgroup_barrier(mem_flags::mem_threadgroup);
out[t] = {read};"""
PLAIN_AMONG_ATOMICS = """threadgroup atomic_uint n;
uint t = thread_position_in_grid.x, v = 0;
if (t == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);
threadgroup_barrier(mem_flags::mem_threadgroup);
if (t == 1) v = *(threadgroup uint*)&n;
if (t == 2) v = atomic_load_explicit(&n, memory_order_relaxed);
if (t == 3) v = atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed);
out[t] = v + x[t];"""
READ_BY_ALL = """threadgroup float b[1];
uint t = thread_position_in_grid.x;
if (t == 0) b[0] = x[0];
simdgroup_barrier(mem_flags::mem_threadgroup);
float v = b[0];
{}
if (t == 5) b[0] = 2;
out[t] = v;"""
SIXTY_FOUR, ONE_SIMDGROUP = call(64), call(32)

# name: (body, launch, what the message says, in order)
RACES = {
    "no barrier": (EXCHANGE.format(""), SIXTY_FOUR, "'b'.*:5$"),
    "a barrier that orders nothing": (
        EXCHANGE.format("threadgroup_barrier(mem_flags::mem_none);"),
        SIXTY_FOUR,
        "data race at byte .* of 'b'.*:5$",
    ),
    "a barrier for other memory": (
        EXCHANGE.format("threadgroup_barrier(mem_flags::mem_device);"),
        SIXTY_FOUR,
        "data race.*'b': read by thread .* not ordered after a write .*:5$",
    ),
    "a simdgroup's barrier between simdgroups": (
        EXCHANGE.format("simdgroup_barrier(mem_flags::mem_threadgroup);"),
        SIXTY_FOUR,
        "'b'.*:5$",
    ),
    "device memory behind a threadgroup barrier": (
        DEVICE_EXCHANGE.format("mem_threadgroup"),
        SIXTY_FOUR,
        "data race at byte .* of 'out': read .*:4$",
    ),
    "a write before the others have read": (
        TWICE.format(""),
        SIXTY_FOUR,
        "data race.*'b': (write .* a read|read .* a write).*:[57]$",
    ),
    "an atomic sum read too early": (
        SUM_OF_ALL.replace(
            "atomic_load_explicit(&n, memory_order_relaxed)", "*(threadgroup uint*)&n"
        ).format(""),
        SIXTY_FOUR,
        "data race.*'n'.*:[57]$",
    ),
    "a plain read among atomic ones": (
        PLAIN_AMONG_ATOMICS,
        ONE_SIMDGROUP,
        "data race.*'n'.*:[57]$",
    ),
    "a plain sum": (
        COUNT.format(kind="uint", zero="n[0] = 0", add="n[0] += 1", read="n[0]"),
        SIXTY_FOUR,
        "data race.*'n'.*:5$",
    ),
    "a write after all lanes have read": (READ_BY_ALL.format(""), ONE_SIMDGROUP, "'b'.*:[57]$"),
    "two threadgroups and one cell": (
        "if (thread_index_in_threadgroup == 0) out[0] = x[0];",
        call(64, group=32, shapes=[(1,)]),
        "data race.*'out': write by thread 0 of threadgroup . .* write by thread 0 of threadgroup",
    ),
    "a reader in another threadgroup": (
        "uint t = thread_position_in_grid.x; out[t] = x[t]; out[t] = out[t ^ 32];",
        call(64, group=32),
        "'out'.*:1$",
    ),
}
ORDERED = {
    "barrier": (EXCHANGE.format(BARRIER), SIXTY_FOUR),
    "barrier for both": (
        EXCHANGE.format("threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"),
        SIXTY_FOUR,
    ),
    "simdgroup barrier": (
        EXCHANGE.replace("63", "31").format("simdgroup_barrier(mem_flags::mem_threadgroup);"),
        ONE_SIMDGROUP,
    ),
    "device barrier": (DEVICE_EXCHANGE.format("mem_device"), SIXTY_FOUR),
    "barrier before writing again": (TWICE.format(BARRIER), SIXTY_FOUR),
    "atomic sum": (SUM_OF_ALL.format(BARRIER), SIXTY_FOUR),
    "atomic count": (
        COUNT.format(
            kind="atomic_uint",
            zero="atomic_store_explicit(&n[0], 0u, memory_order_relaxed)",
            add="atomic_fetch_add_explicit(&n[0], 1u, memory_order_relaxed)",
            read="atomic_load_explicit(&n[0], memory_order_relaxed)",
        ),
        SIXTY_FOUR,
    ),
    "simdgroup barrier after all lanes have read": (
        READ_BY_ALL.format("simdgroup_barrier(mem_flags::mem_threadgroup);"),
        ONE_SIMDGROUP,
    ),
}


@each_schedule
@pytest.mark.parametrize("name", RACES)
def test_a_race_is_reported_whatever_the_order(name, schedule):
    body, launch, message = RACES[name]
    with pytest.raises(MetalError, match=message):
        run(kernel(body), schedule=schedule, **launch)


@each_schedule
@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_is_silent(name, schedule):
    body, launch = ORDERED[name]
    run(kernel(body), schedule=schedule, **launch)


GATHER = """uint t = thread_position_in_grid.x;
{}
out[t] = {} + x[t];"""
DIVERGENCE = {
    "a barrier in a branch": (
        GATHER.format("if (t < 40) threadgroup_barrier(mem_flags::mem_none);", "0"),
        "threadgroup_barrier .*:2. reached by 40 threads, 24 have returned before",
    ),
    "a return before a barrier": (
        GATHER.format("if (t >= 50) return;\nthreadgroup_barrier(mem_flags::mem_none);", "0"),
        ":3. reached by 50 threads, 14 have returned before",
    ),
    "two barriers for one": (
        GATHER.format(
            "if (t < 32)\nthreadgroup_barrier(mem_flags::mem_none);\n"
            "else\nthreadgroup_barrier(mem_flags::mem_none);",
            "0",
        ),
        "divergence: thread .* is at threadgroup_barrier .*:[35].*, others wait at .*:[35]",
    ),
    "a sum in a branch": (
        GATHER.format("float s = 0;\nif (t % 2) s = simd_sum(x[t]);\ns += simd_max(s);", "s"),
        "divergence: thread .* simd_(sum|max) .*:[34].* other lanes .*wait at simd_(sum|max)",
    ),
    "a sum that half of the lanes skip": (
        GATHER.format(
            "float s = 0; if (t % 32 < 16) s = simd_sum(x[t]);\n"
            "threadgroup_barrier(mem_flags::mem_none);",
            "s",
        ),
        "divergence: threadgroup 0 cannot go on, 64 of its 64 .*simd_sum .*:2.*barrier .*:3",
    ),
    "a shuffle from a lane that has returned": (
        GATHER.format("if (t >= 48) { out[t] = 0; return; }", "simd_shuffle(x[t], 20)"),
        "reads lane 20 in simd_shuffle .*:3",
    ),
}


@each_schedule
@pytest.mark.parametrize("name", DIVERGENCE)
def test_divergence_is_reported_whatever_the_order(name, schedule):
    body, message = DIVERGENCE[name]
    with pytest.raises(MetalError, match=message):
        run(kernel(body), schedule=schedule, may_have_gaps=["out"], **SIXTY_FOUR)


def test_lanes_that_have_returned_may_be_missing_from_a_sum():
    body = GATHER.format("if (t >= 40) { out[t] = 0; return; }", "simd_sum(1.0f)")
    (out,) = run(kernel(body), **SIXTY_FOUR)
    assert (out[0].item(), out[32].item(), out[40].item()) == (32, 8 + 32, 0)
