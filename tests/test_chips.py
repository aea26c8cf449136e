"""Apple's chips: families by name, and the environment that MLX gets."""

import sys

import pytest

from mlx_diffusiongemma.chips import COMMAND_BUFFERS, chip_name, family, prepare_mlx


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("Apple M1", 1),
        ("Apple M2 Ultra", 2),
        ("Apple M12 Max", 12),
        ("Apple A18 Pro", None),
        ("Intel(R) Core(TM) i7", None),
        ("NVIDIA M10", None),
        ("", None),
    ],
)
def test_the_family_is_read_from_the_name(name, number):
    assert family(name) == number


@pytest.mark.parametrize(
    ("name", "prepared"),
    [("Apple M1 Max", True), ("Apple M4", True), ("Apple M5 Pro", False), ("", False)],
)
def test_large_command_buffers_where_they_cost(name, prepared):
    environment = {}
    prepare_mlx(environment, name)
    assert environment == (COMMAND_BUFFERS if prepared else {})


def test_who_sets_a_variable_has_the_last_word():
    environment = {"MLX_MAX_OPS_PER_BUFFER": "7"}
    prepare_mlx(environment, "Apple M3")
    assert environment == {"MLX_MAX_OPS_PER_BUFFER": "7", "MLX_MAX_MB_PER_BUFFER": "400"}


@pytest.mark.skipif(sys.platform == "darwin", reason="about other systems")
def test_elsewhere_there_is_no_chip_to_name():
    assert chip_name() == ""


@pytest.mark.skipif(sys.platform != "darwin", reason="about macOS")
def test_a_mac_names_its_chip():
    assert chip_name()
