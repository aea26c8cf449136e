"""The wheel and the sdist: what they contain and what they ask pip to install.

Built once, in a copy of the tree, without a network. `make wheel-check` installs the wheel in a
clean environment and runs it.
"""

import email
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "mlx_diffusiongemma"
BACKENDS = ("cpu", "cuda12", "cuda13")
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "python_version": "3.11"}
MAC = {"sys_platform": "darwin", "platform_system": "Darwin", "python_version": "3.11"}


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    source = tmp_path_factory.mktemp("source") / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


@pytest.fixture(scope="session")
def wheel(dist) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="session")
def metadata(wheel) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


@pytest.fixture(scope="session")
def requirements(metadata) -> list[Requirement]:
    return [Requirement(line) for line in metadata.get_all("Requires-Dist")]


def wanted(requirements, machine, extra="") -> dict[str, Requirement]:
    """What pip would install there for `mlx-diffusiongemma[extra]`."""
    environment = {**machine, "extra": extra}
    return {r.name: r for r in requirements if r.marker is None or r.marker.evaluate(environment)}


def on_disk(folder: Path, name: str = "") -> set[str]:
    """Names, as in the wheel, of the files that the package consists of."""
    return {
        f"{name or folder.name}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    expected = on_disk(ROOT / PACKAGE)
    expected |= on_disk(ROOT / "convert", f"{PACKAGE}/convert")
    expected |= on_disk(ROOT / "metal", f"{PACKAGE}/metal")
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_wheel_holds_what_code_alone_would_not_show(wheel):
    held = set(wheel.namelist())
    assert f"{PACKAGE}/py.typed" in held
    assert f"{PACKAGE}/demo/model.safetensors" in held
    assert f"{PACKAGE}/demo/chat_template.jinja" in held
    metal = {path.name for path in (ROOT / "metal").iterdir() if path.suffix in (".metal", ".h")}
    assert {Path(name).name for name in held if name.endswith((".metal", ".h"))} == metal
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)


def test_the_wheel_is_small_enough_to_carry_its_demo(wheel):
    demo = sum(i.file_size for i in wheel.infolist() if i.filename.startswith(f"{PACKAGE}/demo/"))
    assert demo <= 10 * 2**20


def test_the_sdist_can_be_tested_and_rebuilt(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "CHANGELOG.md", "LICENSE", "tests/conftest.py", "docs/contract.md"} <= held
    assert {"convert/__init__.py", "metal/__init__.py", f"{PACKAGE}/demo/config.json"} <= held


def test_on_macos_mlx_is_a_dependency(requirements):
    mlx = wanted(requirements, MAC)["mlx"]
    assert mlx.specifier == Requirement("mlx>=0.32.4").specifier
    assert not mlx.extras


@pytest.mark.parametrize("extra", BACKENDS)
def test_on_macos_a_linux_backend_adds_nothing(requirements, extra):
    assert wanted(requirements, MAC, extra) == wanted(requirements, MAC)


def test_on_linux_no_backend_comes_by_itself(requirements):
    assert "mlx" not in wanted(requirements, LINUX)


@pytest.mark.parametrize("extra", BACKENDS)
def test_on_linux_an_extra_brings_exactly_its_own_backend(requirements, extra):
    mlx = [
        r for r in requirements if r.name == "mlx" and r.marker.evaluate({**LINUX, "extra": extra})
    ]
    assert [(r.extras, str(r.specifier)) for r in mlx] == [({extra}, ">=0.32.4")]


def test_no_other_extra_chooses_a_backend(metadata, requirements):
    extras = set(metadata.get_all("Provides-Extra"))
    assert extras == {*BACKENDS, "dev", "parity", "plot"}
    for extra in extras - set(BACKENDS):
        assert "mlx" not in wanted(requirements, LINUX, extra)


def test_the_parity_extra_pins_the_reference(requirements):
    parity = wanted(requirements, LINUX, "parity")
    assert str(parity["torch"].specifier) == "==2.13.0"
    assert str(parity["transformers"].specifier) == "==5.24.0"


def test_running_needs_no_torch(requirements):
    for machine in (LINUX, MAC):
        assert "torch" not in wanted(requirements, machine)


def test_the_metadata_says_what_the_package_is(metadata):
    from mlx_diffusiongemma.version import __version__

    assert metadata["Name"] == "mlx-diffusiongemma"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_command_is_installed(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "dgemma-mlx = mlx_diffusiongemma.__main__:main" in wheel.read(name).decode()
