"""The device: which dtype to compute in, and how much memory there is."""

import os

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma import device, hub
from mlx_diffusiongemma.config import parse_config
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.workflow import open_subject
from mlx_diffusiongemma.released import released_values

RELEASED = parse_config(released_values())


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(device, "on_cpu", lambda: True)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(device, "on_cpu", lambda: False)


# Dtype ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("dtype", device.DTYPES)
def test_a_gpu_computes_in_what_the_checkpoint_says(dtype):
    config = parse_config(tiny.config_values() | {"dtype": dtype})
    assert device.compute_dtype(config, None) == getattr(mx, dtype)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("major", "dtype", "expected"),
    [
        (7, "bfloat16", mx.float32),
        (7, "float16", mx.float16),
        (8, "bfloat16", mx.bfloat16),
        (9, "bfloat16", mx.bfloat16),
    ],
)
def test_an_nvidia_gpu_without_bfloat16_computes_in_float32(monkeypatch, major, dtype, expected):
    monkeypatch.setattr(mx, "device_info", lambda: {"compute_capability_major": major})
    config = parse_config(tiny.config_values() | {"dtype": dtype})
    assert device.compute_dtype(config, None) == expected
    assert device.compute_dtype(config, "bfloat16") == mx.bfloat16


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", device.DTYPES)
def test_the_cpu_computes_in_float32(dtype):
    config = parse_config(tiny.config_values() | {"dtype": dtype})
    assert device.compute_dtype(config, None) == mx.float32


@pytest.mark.parametrize("where", ["on_cpu", "on_gpu"])
@pytest.mark.parametrize("dtype", device.DTYPES)
def test_the_caller_decides_otherwise(request, where, dtype):
    request.getfixturevalue(where)
    assert device.compute_dtype(RELEASED, dtype) == getattr(mx, dtype)


@pytest.mark.parametrize("dtype", ["float64", "", "bf16", "Float32", 16])
def test_another_dtype_is_refused_with_the_value(dtype):
    with pytest.raises(ConfigError) as caught:
        device.compute_dtype(RELEASED, dtype)
    assert str(caught.value) == f"dtype is {dtype!r}"
    assert caught.value.hint == "dtype must be one of float32, float16, bfloat16"


def test_float32_is_kept_exact_unless_somebody_said_otherwise(monkeypatch):
    monkeypatch.setenv("MLX_ENABLE_TF32", "")  # so that it is put back afterwards
    monkeypatch.delenv("MLX_ENABLE_TF32")
    open_subject(hub.resolve(hub.DEMO), hub.DEMO, backend="mlx")
    assert os.environ["MLX_ENABLE_TF32"] == "0"
    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    device.keep_float32_exact()
    assert os.environ["MLX_ENABLE_TF32"] == "1"


# Memory there is --------------------------------------------------------------------------------


def test_on_the_cpu_it_is_the_machines_or_what_the_process_may_have(on_cpu, monkeypatch):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limits, expected in ([], physical), ([2**62], physical), ([2**62, 5000], 5000):
        monkeypatch.setattr(device, "cgroup_limits", lambda limits=limits: limits)
        assert device.available_memory() == expected


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"max_recommended_working_set_size": 12, "memory_size": 16}, 12),
        ({"total_memory": 80, "free_memory": 30}, 35),
        ({"total_memory": 80, "free_memory": 78}, 80),
        ({"memory_size": 16}, 16),
    ],
    ids=["Metal", "CUDA beside another program", "CUDA", "Metal without a recommendation"],
)
def test_on_a_gpu_it_is_what_the_device_says(on_gpu, monkeypatch, info, expected):
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 4)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: 1)
    assert device.available_memory() == expected


def system(root, groups, **limits):
    """A file system with a /proc/self/cgroup and limit files; `__` stands for `/`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, limit in limits.items():
        file = root / "sys/fs/cgroup" / path.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


def test_a_control_group_of_version_two_limits_memory_and_so_do_its_parents(tmp_path):
    root = system(
        tmp_path,
        "0::/user.slice/job\n",
        user__memoryDOTmax=1,  # of another group
        userDOTslice__memoryDOTmax=7000,
        userDOTslice__job__memoryDOTmax="max",
    )
    assert device.cgroup_limits(root) == [7000]


def test_a_control_group_of_version_one_limits_memory(tmp_path):
    root = system(
        tmp_path,
        "12:cpu,cpuacct:/other\n4:memory:/docker/1f\n1:name=systemd:/x\n",
        memory__docker__1f__memoryDOTlimit_in_bytes=5000,
        memory__memoryDOTlimit_in_bytes=9223372036854771712,
        cpu__other__memoryDOTlimit_in_bytes=1,
    )
    assert device.cgroup_limits(root) == [5000, 9223372036854771712]


def test_a_container_sees_its_own_group_at_the_root(tmp_path):
    """The path is the host's, and only the mounted root exists."""
    groups = "4:memory:/docker/1f\n0::/docker/1f\n"
    root = system(tmp_path, groups, memory__memoryDOTlimit_in_bytes=5000, memoryDOTmax=6000)
    assert device.cgroup_limits(root) == [5000, 6000]


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert device.cgroup_limits(tmp_path) == []


def test_this_machine_has_some_memory():
    assert device.available_memory() > 2**28


# Metal ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_gpu")
def test_memory_is_wired_once_in_a_process(monkeypatch):
    limits = []
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12345})
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    device._wire.cache_clear()
    for _ in range(3):
        device.wire_memory()
    device._wire.cache_clear()
    assert limits == [12345]


@pytest.mark.usefixtures("on_cpu")
def test_nothing_is_wired_on_a_cpu(monkeypatch):
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: pytest.fail("wired"))
    device.wire_memory()
