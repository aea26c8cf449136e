"""Which build of MLX is here: wheels and libraries as they lie on a Mac and on Linux."""

import pytest

from mlx_diffusiongemma import mlx_build
from mlx_diffusiongemma.bench.machine import describe_machine
from mlx_diffusiongemma.mlx_build import build_in, find_build


@pytest.fixture(autouse=True)
def no_architecture(monkeypatch):
    monkeypatch.delenv(mlx_build.ARCHITECTURE, raising=False)


def installed(folder, tag, names):
    """As `pip install mlx` leaves it on a Mac."""
    info = folder / "mlx_metal-0.32.4.dist-info"
    info.mkdir()
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: py3-none-{tag}\n")
    (folder / "mlx_lm-0.32.2.dist-info").mkdir()
    (folder / "mlx_lm-0.32.2.dist-info" / "WHEEL").write_text("Tag: py3-none-any\n")
    library = folder / "mlx" / "lib" / "mlx.metallib"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"MTLB" + bytes(5000) + names + bytes(5000))
    return folder / "mlx"


@pytest.mark.parametrize(
    ("tag", "names", "words"),
    [
        ("macosx_26_0_arm64", b"affine_qmm_t_nax_float16", "macosx_26_0_arm64, with NAX kernels"),
        ("macosx_15_0_arm64", b"affine_qmm_t_float16", "macosx_15_0_arm64, without NAX kernels"),
    ],
)
def test_a_mac_has_a_library_with_kernels_for_neural_accelerators_or_without(
    tmp_path, tag, names, words
):
    build = build_in(installed(tmp_path, tag, names))
    assert build.has_nax is (b"nax" in names) and build.wheels == (tag,)
    assert build.in_words() == f"mlx {build.mlx} ({words})"


def test_a_gpu_that_mlx_is_told_to_see_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(mlx_build.ARCHITECTURE, "applegpu_g16s")
    assert "MLX_METAL_GPU_ARCH=applegpu_g16s" in build_in(tmp_path / "mlx").in_words()


def test_what_cannot_be_known_is_not_said(tmp_path):
    build = build_in(tmp_path / "mlx")
    assert (build.wheels, build.has_nax, build.architecture) == ((), None, None)
    assert build.in_words() == f"mlx {build.mlx}"
    assert build_in(None).in_words() == build.in_words()


def test_reports_say_which_mlx_they_were_measured_with():
    assert describe_machine().endswith(find_build().in_words())
