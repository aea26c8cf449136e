"""What every test gets: the working tree installed, no network, a home of its own, no luck.

The environment is set before any test module is imported, because huggingface_hub reads it once.
Subprocesses inherit it.
"""

import os
import secrets
import signal
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

_home = tempfile.TemporaryDirectory(prefix="dgemma-tests-")
for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN", "XDG_CACHE_HOME"):
    os.environ.pop(name, None)
os.environ["HOME"] = _home.name
os.environ["HF_HOME"] = str(Path(_home.name) / "huggingface")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# What is held against float32 is computed in it; a GPU may round to TF32 otherwise.
os.environ["MLX_ENABLE_TF32"] = "0"

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the commands
# that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _require_editable_install() -> None:
    """Stop at once, with the reason, unless the tests run on this very tree."""
    package, convert = ROOT / "mlx_diffusiongemma", ROOT / "convert"
    for name, folder in ("mlx_diffusiongemma", package), ("mlx_diffusiongemma.convert", convert):
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != folder:
            raise pytest.UsageError(
                f"`{name}` comes from {found or 'nowhere'}, not from {folder}: the package must be "
                "installed in editable form; run `make install`, then use .venv/bin/python"
            )


_require_editable_install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run. Where CI=true, Linux must have clang
    and NVRTC."""
    import emulator
    import mlx.core as mx
    import nvrtc

    missing = {}
    if no_emulator := emulator.missing():
        missing["emulator"] = no_emulator
        if not mx.metal.is_available():
            missing["kernels"] = no_emulator
        if sys.platform == "linux" and os.environ.get("CI") == "true":
            raise pytest.UsageError(no_emulator)
    if no_nvrtc := nvrtc.missing():
        missing["nvrtc"] = no_nvrtc
        if sys.platform == "linux" and os.environ.get("CI") == "true":
            raise pytest.UsageError(no_nvrtc)
    if not mx.metal.is_available():
        missing["metal"] = "no Metal GPU on this machine"
    if not mx.cuda.is_available() or not mx.device_count(mx.gpu):
        missing["cuda"] = "no NVIDIA GPU that MLX can use; where there is one, `make test-cuda`"
    if find_spec("torch") is None:
        missing["parity"] = "torch is not installed; `make parity` runs these"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave the machine; the marker `network` lifts this."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        inside = self.family == getattr(socket, "AF_UNIX", None)
        host = address[0] if isinstance(address, tuple) else ""
        if not inside and host not in ("127.0.0.1", "::1", "localhost"):
            raise ConnectionRefusedError(f"a test tried to reach {host}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def scrambled_global_randomness() -> None:
    """Code that draws from MLX's global generator cannot repeat itself, so its tests fail."""
    import mlx.core as mx

    mx.random.seed(secrets.randbits(32))
