"""`info --device`: what is said of a CPU, of a Metal and of an NVIDIA GPU."""

import getpass
import json
import platform
from dataclasses import replace

import mlx.core as mx
import pytest

from mlx_diffusiongemma import device, device_report, weights
from mlx_diffusiongemma.cli.device import as_lines
from mlx_diffusiongemma.device_report import KernelReport, describe_device
from mlx_diffusiongemma.kernels import dispatch
from mlx_diffusiongemma.mlx_build import Build

H200 = {
    "device_name": "NVIDIA H200",
    "architecture": "sm_90",
    "uuid": "GPU-0123",
    "pci_bus_id": "0000:01:00.0",
    "compute_capability_major": 9,
    "compute_capability_minor": 0,
    "total_memory": 150_000_000_000,
    "free_memory": 140_000_000_000,
}
on_a_cpu = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="there is a GPU")


@pytest.fixture
def nvidia(monkeypatch):
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    monkeypatch.setattr(mx, "device_info", lambda: H200)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.delenv(device.TF32_SWITCH, raising=False)


@on_a_cpu
def test_a_cpu(run_here):
    run = run_here("info", "--device", fake=False)
    assert (run.code, run.err) == (0, "")
    lines = run.out.splitlines()
    assert [line[:13].strip() for line in lines] == [
        *("device", "MLX", "build", "memory", "dtype", "our kernels")
    ]
    assert f"({platform.machine()})" in lines[0]
    assert "CPU back-end" in lines[1] and "a model may take " in lines[3]
    assert lines[4].endswith("float32: MLX's CPU back-end is many times slower in half precision")
    assert lines[5].endswith("none run: they are written for GPUs; MLX's own operations compute")
    assert max(map(len, lines)) <= 100


@on_a_cpu
def test_json_says_the_same_and_nothing_of_the_machine(run_here):
    run = run_here("info", "--device", "--json", fake=False)
    fields = json.loads(run.out)
    assert (fields["kind"], fields["dtype"], fields["exact_float32"]) == ("cpu", "float32", True)
    assert fields["usable_bytes"] <= fields["total_bytes"] == device.physical_memory()
    assert fields["free_bytes"] is None and fields["kernels"]["used"] == []
    assert set(fields["versions"]) == {"python", "mlx", "mlx-diffusiongemma"}
    told = {str(value) for value in fields.values()}
    assert not told & {platform.node(), getpass.getuser()} and "/" not in run.out


def test_an_nvidia_gpu(nvidia, monkeypatch):
    build = Build("0.32.4", ("manylinux_2_35_x86_64",), None, None)
    report = replace(describe_device(), back_ends=("mlx-cuda-13",), build=build)
    assert [line.split(maxsplit=1)[1] for line in as_lines(report)][:6] == [
        "NVIDIA H200 (sm_90)",
        f"{report.versions['mlx']}, CUDA back-end (mlx-cuda-13)",
        "mlx 0.32.4 (manylinux_2_35_x86_64)",
        "150.0 GB, 140.0 GB free; a model may take 140.0 GB",
        "as the checkpoint says; the released one says bfloat16",
        "products may be rounded to TF32; MLX_ENABLE_TF32=0 keeps them exact",
    ]
    assert "GPU-0123" not in str(report) and "0000:01" not in str(report)
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    assert describe_device().exact_float32
    assert not any("TF32" in line for line in as_lines(describe_device()))


def test_an_nvidia_gpu_without_bfloat16(nvidia, monkeypatch):
    monkeypatch.setattr(mx, "device_info", lambda: H200 | {"compute_capability_major": 7})
    report = describe_device()
    assert report.dtype == "float32" and "does not calculate in bfloat16" in report.dtype_reason


@on_a_cpu
def test_kernels_are_tried_in_the_dtype_of_the_device_and_in_float32(monkeypatch):
    """A kernel for float32 may work where that for the device's dtype does not."""
    tried = []
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    monkeypatch.setattr(device, "has_bfloat16", lambda: True)
    monkeypatch.setattr(device, "emulates_bfloat16", lambda: True)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    monkeypatch.setattr(
        dispatch,
        "passes_trial",
        lambda operation, *given: tried.append((operation.name, given[0])) or True,
    )
    monkeypatch.setattr(weights, "_check_dtype", lambda *given: None)  # nothing is multiplied

    def zeros(launch):
        given = zip(launch.output_shapes, launch.output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in given]

    monkeypatch.setattr(dispatch, "_launcher", zeros)
    device_report._try_demo()
    dtypes = {given.dtype for name, given in tried if name == "prepare_heads"}
    assert dtypes == {mx.float32, mx.float16}


@on_a_cpu
def test_kernels_are_tried_and_those_that_fail_are_named(monkeypatch, caplog):
    """A Metal that is none: every kernel fails its trial, and says why."""
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    kernels = describe_device().kernels
    assert kernels.used == ()
    assert {"geglu", "prepare_heads", "route", "route of a long prompt"} <= set(kernels.failed)
    assert {"logit_statistics", "accept_within_bound"} <= set(kernels.failed)
    assert "No Metal back-end" in caplog.text
    line = list(as_lines(replace(describe_device(), kernels=kernels)))[-1]
    assert line.startswith(f"{'':15}not used, they failed that trial: accept_within_bound, add_")


@on_a_cpu
def test_kernels_that_pass_and_kernels_that_are_switched_off(monkeypatch):
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(device_report, "_try_demo", lambda: None)
    trials = {("geglu", 8): True, ("geglu", 16): True, ("route", 1): True, ("route", 2): False}
    monkeypatch.setattr(dispatch, "_trials", trials)
    assert describe_device().kernels == KernelReport(
        ("geglu",), ("route",), "each was held against MLX's own operations before it was used"
    )
    monkeypatch.setenv(dispatch.SWITCH, "0")
    assert describe_device().kernels == KernelReport(
        (), (), "DGEMMA_METAL_KERNELS=0 switches them off"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [([], "there is no MODEL"), (["demo", "--device"], "there are both MODEL and --device")],
)
def test_a_model_or_the_device_but_not_both(run_here, arguments, error):
    run = run_here("info", *arguments, fake=False)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith(f"error: {error}") and "hint: `dgemma-mlx info MODEL`, or" in run.err
