"""The device: the dtype, the memory there is and that is needed, what to do if it is too little."""

import os
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest
import tiny

from mlx_diffusiongemma import device
from mlx_diffusiongemma.checkpoint import TensorInfo, plan_tensors, read_tensors
from mlx_diffusiongemma.config import parse_config, read_config
from mlx_diffusiongemma.errors import ConfigError, MemoryNeedError
from mlx_diffusiongemma.recipes import RECIPES
from mlx_diffusiongemma.runtime import load_model

RELEASED = parse_config(tiny.released_values())
DEMO = Path(str(files("mlx_diffusiongemma") / "demo"))
GB = 10**9
# Bytes of caches at 4096 tokens in a two-byte dtype, by hand: 25 sliding layers hold their window
# and a canvas, 5 full ones everything.
CACHES = 25 * 2 * 8 * 256 * (1024 + 256) * 2 + 5 * 2 * 2 * 512 * (4096 + 256) * 2
STEP = 4 * 4 * 256 * 262_144


def weights(*shapes, dtype="BF16"):
    return [TensorInfo("w", Path(), shape, dtype) for shape in shapes]


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
        ({"total_memory": 80, "free_memory": 3}, 80),
        ({"memory_size": 16}, 16),
    ],
    ids=["Metal", "CUDA", "Metal without a recommendation"],
)
def test_on_a_gpu_it_is_what_the_device_says(on_gpu, monkeypatch, info, expected):
    monkeypatch.setattr(mx, "device_info", lambda: info)
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


# Memory that is needed --------------------------------------------------------------------------


def test_the_need_by_hand():
    need = device.memory_need(RELEASED, weights((1000, 1000)), mx.bfloat16, 4096)
    assert (need.weights, need.caches, need.working) == (2_000_000, CACHES, STEP)
    assert need.total == 2_000_000 + CACHES + STEP


def test_floats_take_the_compute_dtype_and_packed_weights_stay():
    tensors = weights((10, 10)) + weights((10, 10), dtype="U32") + weights((10, 10), dtype="U8")
    for dtype, size in ((mx.float32, 4), (mx.bfloat16, 2)):
        need = device.memory_need(RELEASED, tensors, dtype, 4096)
        assert need.weights == 100 * size + 400 + 100
        assert need.caches == CACHES * size // 2


def test_a_short_context_takes_small_caches_in_every_layer():
    need = device.memory_need(RELEASED, [], mx.bfloat16, 100)
    assert need.caches == 2 * (25 * 8 * 256 + 5 * 2 * 512) * (100 + 256) * 2


def test_a_long_context_takes_attention_scores_too():
    """2048 queries of 16 heads against everything, in each full layer."""
    need = device.memory_need(RELEASED, [], mx.bfloat16, 262_144)
    assert need.working > 16 * 2048 * 262_144 * 2


def test_the_need_grows_with_the_context():
    needs = [device.memory_need(RELEASED, [], mx.bfloat16, 2**n).total for n in range(8, 19)]
    assert needs == sorted(set(needs))


def test_the_demo_needs_little():
    tensors = plan_tensors(read_tensors(DEMO)).used.values()
    need = device.memory_need(read_config(DEMO), tensors, mx.float32, device.DEFAULT_CONTEXT)
    assert need.weights == pytest.approx(2 * 3_364_324)
    assert need.total < 0.2 * GB


# When it is too little --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("bf16", 50.5), ("8bit", 26.8), ("mixed-4-8", 15.4), ("mixed-3-8", 12.5), ("mixed-2-8", 9.7)],
)
def test_recipes_have_the_sizes_we_publish(name, gigabytes):
    assert device.recipe_bytes(RECIPES[name], RELEASED, 2) == pytest.approx(
        gigabytes * GB, rel=0.03
    )


def test_scales_grow_with_the_compute_dtype():
    extra = [device.recipe_bytes(RECIPES["mixed-4-8"], RELEASED, item) for item in (2, 4)]
    assert extra[1] - extra[0] == pytest.approx(25.24e9 * 2 * 2 / 64, rel=0.02)
    float_modes = [device.recipe_bytes(RECIPES["mxfp8"], RELEASED, item) for item in (2, 4)]
    assert float_modes[1] - float_modes[0] < 0.03 * GB  # the router, which is not packed


def released_need(context=4096):
    return device.memory_need(RELEASED, weights((25_250, 1000, 1000)), mx.bfloat16, context)


@pytest.mark.parametrize(
    ("gigabytes", "recipe"),
    [(48, "8bit"), (28.5, "8bit"), (24, "mixed-4-8"), (16, "mixed-3-8"), (12, "mixed-2-8")],
)
def test_the_error_names_the_largest_recipe_that_fits(gigabytes, recipe):
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), round(gigabytes * GB))
    assert caught.value.hint == f"the recipe `{recipe}` would fit; `--force` loads it anyway"


def test_the_error_says_what_is_needed_and_what_there_is():
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), 24 * GB)
    assert str(caught.value) == (
        "this model needs 51.9 GB (weights 50.5 GB, caches 0.4 GB, work 1.1 GB) and this device "
        "has 24.0 GB"
    )


def test_when_nothing_fits_the_error_says_so():
    with pytest.raises(MemoryNeedError) as caught:
        device.check_memory(RELEASED, released_need(), 8 * GB)
    assert caught.value.hint == "no recipe makes it fit here; `--force` loads it anyway"


def test_a_long_context_leaves_less_room_for_weights():
    for context, recipe in (4096, "8bit"), (131_072, "mixed-4-8"):
        with pytest.raises(MemoryNeedError) as caught:
            device.check_memory(RELEASED, released_need(context), 36 * GB)
        assert f"`{recipe}`" in caught.value.hint


def test_exactly_enough_is_enough():
    need = released_need()
    device.check_memory(RELEASED, need, need.total)
    with pytest.raises(MemoryNeedError):
        device.check_memory(RELEASED, need, need.total - 1)


def test_loading_checks_the_memory_and_force_does_not(monkeypatch):
    monkeypatch.setattr(device, "available_memory", lambda: 1_000_000)
    with pytest.raises(MemoryNeedError, match="this device has 0.0 GB"):
        load_model(DEMO)
    load_model(DEMO, force=True)


def test_loading_makes_room_for_the_context_that_is_asked(monkeypatch):
    tensors = plan_tensors(read_tensors(DEMO)).used.values()
    dtype = device.compute_dtype(read_config(DEMO), None)
    small = device.memory_need(read_config(DEMO), tensors, dtype, 64).total
    monkeypatch.setattr(device, "available_memory", lambda: small)
    load_model(DEMO, max_context=64)
    with pytest.raises(MemoryNeedError):
        load_model(DEMO, max_context=65)
    with pytest.raises(MemoryNeedError):
        load_model(DEMO)
