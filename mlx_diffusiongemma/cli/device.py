"""`dgemma-mlx info --device`: what computes here, in lines and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from mlx_diffusiongemma.cli.console import labelled, print_json
from mlx_diffusiongemma.cli.loading import check_backend
from mlx_diffusiongemma.hub_cache import format_size

if TYPE_CHECKING:
    from mlx_diffusiongemma.device_report import DeviceReport

_BACK_ENDS = {"metal": "Metal", "cuda": "CUDA", "cpu": "CPU"}


def show_device(as_json: bool) -> None:
    """Print the report on the device that MLX computes on."""
    check_backend()

    from mlx_diffusiongemma.device_report import describe_device

    report = describe_device()
    if as_json:
        print_json(asdict(report))
    else:
        print("\n".join(as_lines(report)))


def as_lines(report: "DeviceReport") -> Iterator[str]:
    """The report for people."""
    yield from labelled("device", f"{report.name} ({report.architecture})")
    packages = f" ({', '.join(report.back_ends)})" if report.back_ends else ""
    yield from labelled(
        "MLX", f"{report.versions['mlx']}, {_BACK_ENDS[report.kind]} back-end{packages}"
    )
    yield from labelled("build", report.build.in_words())
    free = "" if report.free_bytes is None else f", {format_size(report.free_bytes)} free"
    yield from labelled(
        "memory",
        f"{format_size(report.total_bytes)}{free}; "
        f"a model may take {format_size(report.usable_bytes)}",
    )
    own = f"{report.dtype}: " if report.dtype else ""
    yield from labelled("dtype", own + report.dtype_reason)
    if not report.exact_float32:
        yield from labelled(
            "float32", "products may be rounded to TF32; MLX_ENABLE_TF32=0 keeps them exact"
        )
    yield from labelled("our kernels", *_kernels(report))


def _kernels(report: "DeviceReport") -> Iterator[str]:
    kernels = report.kernels
    yield f"{', '.join(kernels.used) or 'none run'}: {kernels.reason}"
    if kernels.failed:
        yield f"not used, they failed that trial: {', '.join(kernels.failed)}"
