"""The kernels as CUDA: what NVRTC says, and what they compute, on the CPU under the checker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import emulated
import emulator
import kernel_mutants
import mlx.core as mx
import mutant_launches
import nvrtc
import operations
import pytest
from emulator import cuda as on_cpu
from emulator import cuda_source
from operations import WITH_KERNELS

from mlx_diffusiongemma.kernels import activation, cuda, dispatch, expert_products, renewal
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch

ARCHITECTURES = ("sm_90", "sm_80")  # H100 and H200, A100
# They need simdgroup matrices, which CUDA does not have.
MATRICES = {*expert_products.GATED.values(), *expert_products.DOWN.values()}
KERNELS = [kernel for kernel in kernel_mutants.GUARDS if kernel not in MATRICES]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
each_operation = pytest.mark.parametrize("name", WITH_KERNELS)


def generated(launch: Launch) -> str:
    return cuda_source.generated(cuda.source(launch), cuda.arguments(launch))


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """What is launched inside, without its being run."""
    seen: list[Launch] = []

    def launcher(launch: Launch) -> list[mx.array]:
        seen.append(launch)
        given = zip(launch.output_shapes, launch.output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in given]

    with dispatch.forced(launcher):
        yield seen


# Compiled -------------------------------------------------------------------------------------


@pytest.mark.nvrtc
@emulated.each_dtype
@each_operation
def test_nvrtc_compiles_what_an_operation_launches(name, dtype):
    with recorded() as launches:
        operations.computed(operations.CASES[name](dtype))
    texts = {generated(launch) for launch in launches}
    assert texts
    for text in texts:
        # An older GPU than this has fewer functions of its own for bfloat16.
        for architecture in ARCHITECTURES if dtype == mx.bfloat16 else ARCHITECTURES[:1]:
            assert nvrtc.errors(text, architecture) == ""


def test_every_kernel_is_launched_by_one_of_these_operations():
    names = set()
    for name in WITH_KERNELS:
        with recorded() as launches:
            operations.computed(operations.CASES[name](mx.float32))
        names |= {launch.kernel.name for launch in launches}
    assert names == {kernel.name for kernel in KERNELS}


@pytest.mark.nvrtc
def test_the_headers_that_mlx_includes_do_not_disturb():
    with recorded() as launches:
        operations.computed(operations.add_attention(mx.bfloat16))
    assert nvrtc.errors(generated(launches[0]), "sm_90", whole=True) == ""


@pytest.mark.nvrtc
def test_an_error_names_the_file_and_the_line_of_the_kernel():
    text = generated(mutant_launches.launch_of(renewal.RENEW))
    said = nvrtc.errors(text.replace("= simd_sum(x)", "= simd_total(x)"), "sm_90")
    assert "norm_functions.metal(7)" in said and "simd_total" in said
    said = nvrtc.errors(text.replace("own[0] += entropy", "own[0] += entropies"), "sm_90")
    assert "renew.metal(31)" in said and "entropies" in said


def test_a_name_tells_all_that_a_kernel_depends_on():
    """MLX looks for a compiled kernel by its name; the dtype of logits is in no template."""
    names = set()
    for dtype in emulated.DTYPES:
        with recorded() as launches:
            operations.computed(operations.logit_statistics(dtype))
        names |= {cuda.source(launch).name for launch in launches}
    assert len(names) == len(emulated.DTYPES)


# Run on the CPU -------------------------------------------------------------------------------


def as_text(outputs: list[mx.array]) -> list[str]:
    return [str(output.astype(mx.float32).tolist()) for output in outputs]  # NaN equals NaN


@pytest.mark.emulator
@each_kernel
@pytest.mark.parametrize("schedule", emulator.SCHEDULES)
def test_a_kernel_computes_what_it_computes_in_metal(kernel, schedule):
    """With the launches in which every mutant shows: bit for bit, and the checker is silent."""
    launch = mutant_launches.launch_of(kernel)
    assert as_text(emulated.run_as_cuda(launch, schedule=schedule)) == as_text(emulated.run(launch))


@pytest.mark.emulator
def test_more_rows_than_cuda_has_blocks_along_y():
    gate = mx.random.normal((70_000, 3), key=mx.random.key(1))
    launch = activation.geglu_launch(gate, gate)
    assert cuda.arguments(launch)["grid"] == (3 * 70_000, 1, 1)
    assert mx.allclose(
        emulated.run_as_cuda(launch, "fast")[0], activation.reference.geglu(gate, gate), atol=1e-6
    )


@pytest.mark.parametrize("grid", [(300, 1, 1), (256, 5, 1)])
def test_a_kernel_that_counts_threadgroups_gets_whole_ones_only(grid):
    launch = replace(mutant_launches.launch_of(renewal.RENEW), grid=grid)
    if grid[0] % launch.threadgroup[0]:
        with pytest.raises(ValueError, match="renew is not of whole blocks"):
            cuda.arguments(launch)
    else:
        assert cuda.arguments(launch)["grid"] == grid


# What each line of the dialect is there for: without it, a fault or another result.
DIALECT = [
    ("{ __syncthreads(); }", "{}", "renew"),
    ("{ __syncthreads(); }", "{}", "sort_by_expert"),
    ("{ __syncwarp(); }", "{}", "sort_by_expert"),
    ("{ __syncwarp(); }", "{}", "route"),
    ("if (metal::is_outside(thread_position_in_grid, launch_grid)) return;", "", "choose_experts"),
    ("if (metal::is_outside(thread_position_in_grid, launch_grid)) return;", "", "geglu"),
    (
        "blockIdx.x / across % down * blockDim.y",
        "blockIdx.x / across * blockDim.y",
        "prepare_heads",
    ),
    ("blockIdx.x / across / down", "0", "prepare_heads"),
    ("blockIdx.x % across * blockDim.x", "blockIdx.x * blockDim.x", "gather_normed"),
    ("if (lane >= uint(far)) x += before;", "x += before;", "draw_tokens"),
    ("lane == 0 ? T(0) : before", "before", "draw_tokens"),
    ("far < 32; far *= 2) x += simd", "far < 16; far *= 2) x += simd", "add_attention"),
    ("far < 32; far *= 2) x = max", "far < 16; far *= 2) x = max", "route"),
    ("far < 32; far *= 2) x = min", "far < 16; far *= 2) x = min", "route"),
    ("return __any_sync(all_lanes, x)", "return x", "route"),
    ("return __shfl_sync(all_lanes, x, lane)", "return x", "route"),
    ("return b < a ? b : a", "return b < a ? a : b", "route"),
    ("return x != x", "return false", "route"),
    ("fabsf(x) < INFINITY", "true", "renew"),
    ("make_uint3(launch_grid[0]", "make_uint3(1 + launch_grid[0]", "gather_normed"),
    ("metal::thread_index_in_threadgroup() % 32;", "0;", "add_attention"),
    ("metal::thread_index_in_threadgroup() / 32;", "0;", "add_attention"),
]


@pytest.mark.emulator
@pytest.mark.parametrize(("old", "new", "name"), DIALECT)
def test_a_line_of_the_dialect_is_needed(old, new, name):
    (kernel,) = [kernel for kernel in KERNELS if kernel.name == name]
    launch = _in_small_blocks(mutant_launches.launch_of(kernel))
    source, arguments = cuda.source(launch), cuda.arguments(launch)
    assert old in source.header + source.body
    parts = [part.replace(old, new) for part in (source.header, source.body)]
    changed = replace(source, header=parts[0], body=parts[1])
    try:
        got = as_text(on_cpu.run(changed, arguments))
    except emulator.MetalError:
        return
    assert got != as_text(emulated.run(launch))


def _in_small_blocks(launch: Launch) -> Launch:
    """A grid of several blocks, the last of which is not full, where a kernel counts threads."""
    if launch.kernel.name not in ("gather_normed", "geglu"):
        return launch
    return replace(launch, threadgroup=(16, 1, 1))


# Where they run -------------------------------------------------------------------------------


def test_on_an_nvidia_gpu_launches_are_cuda_s(monkeypatch):
    launched = []
    monkeypatch.setattr(dispatch, "on_cuda", lambda: True)
    monkeypatch.setattr(dispatch, "launch_on_cuda", lambda launch: launched.append(launch) or [])
    launch = mutant_launches.launch_of(renewal.RENEW)
    dispatch.run(launch)
    assert launched == [launch]


def test_without_cuda_there_is_no_kernel_object():
    """MLX refuses at once, which is why they are made at the first launch and not before."""
    kernel: Kernel = renewal.RENEW
    if not mx.cuda.is_available():
        with pytest.raises(RuntimeError, match="No CUDA back-end"):
            cuda.launch_on_cuda(mutant_launches.launch_of(kernel))
