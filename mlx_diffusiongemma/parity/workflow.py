"""The two halves of a proof: record a model on one machine, check another's copy of it here."""

from collections.abc import Callable
from pathlib import Path

from mlx_diffusiongemma.config import read_config, read_generation_config
from mlx_diffusiongemma.device import check_dtype_name, keep_float32_exact
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.comparison import Comparison, compare
from mlx_diffusiongemma.parity.facts import check_same_model
from mlx_diffusiongemma.parity.recording import Subject, record
from mlx_diffusiongemma.parity.suite import Inputs, Suite, fresh_inputs, inputs_of
from mlx_diffusiongemma.parity.trace import Trace

BACKENDS = ("transformers", "mlx")
DEVICES = ("cpu", "cuda")


def _ignore(what: str) -> None:
    pass


def open_subject(
    folder: Path,
    name: str,
    *,
    backend: str,
    dtype: str | None = None,
    device: str | None = None,
    force: bool = False,
) -> Subject:
    """Load the checkpoint in `folder`, which the user called `name`, for recording.

    Args:
        backend: "transformers", the reference, or "mlx", this package.
        dtype: to compute in; None takes what suits the device.
        device: "cpu" or "cuda", of transformers; None takes CUDA where there is one. MLX computes
            on its default device.
        force: load with MLX even when the memory looks too small.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}", hint=f"backends: {', '.join(BACKENDS)}")
    check_dtype_name(dtype)
    if backend == "mlx":
        if device is not None:
            raise ConfigError(
                f"device is {device!r} with the backend mlx", hint="MLX takes its default device"
            )
        from mlx_diffusiongemma.parity.ours import OurModel

        keep_float32_exact()
        return OurModel.open(folder, name, dtype=dtype, force=force)
    if device not in (None, *DEVICES):
        raise ConfigError(f"device is {device!r}", hint=f"devices: {', '.join(DEVICES)}")
    try:
        from mlx_diffusiongemma.parity.reference import Reference
    except ImportError as error:
        raise ConfigError(
            f"the reference cannot be imported: {error}",
            hint="`pip install 'mlx-diffusiongemma[parity]'` brings torch and transformers; "
            "`--backend mlx` records this package's own model",
        ) from None
    return Reference.open(folder, name, dtype=dtype, device=device)


def suite_inputs(folder: Path, suite: Suite) -> Inputs:
    """A suite for the checkpoint in `folder`; its tokenizer, if it has one, makes the prompts."""
    encoder = None
    if (folder / "tokenizer.json").is_file():
        from mlx_diffusiongemma.text import Tokenizer  # seconds

        encoder = Tokenizer.load(folder)
    return fresh_inputs(suite, read_config(folder), read_generation_config(folder), encoder)


def record_like(
    trace: Trace, subject: Subject, *, progress: Callable[[str], None] = _ignore
) -> Trace:
    """Record another model on the inputs and draws of a trace; TraceError when it is no match."""
    check_same_model(trace.manifest.model, subject.facts)
    return record(subject, inputs_of(trace), progress=progress)


def check(
    trace: Trace, subject: Subject, *, progress: Callable[[str], None] = _ignore
) -> Comparison:
    """Run a trace again on another model, and compare."""
    return compare(trace, record_like(trace, subject, progress=progress))
