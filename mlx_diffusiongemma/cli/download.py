"""A download on standard error: a bar at a terminal, now and then a line elsewhere."""

from pathlib import Path
from types import TracebackType

from mlx_diffusiongemma import hub
from mlx_diffusiongemma.cli import console
from mlx_diffusiongemma.cli.byte_progress import View, open_view
from mlx_diffusiongemma.hub_cache import format_size


def announce(plan: hub.DownloadPlan) -> str:
    """What will be downloaded, how large it is and where it goes."""
    revision = "" if plan.revision == "main" else f" at {plan.revision}"
    folder = plan.folder
    if folder.is_relative_to(Path.home()):
        folder = Path("~") / folder.relative_to(Path.home())
    return (
        f"downloading {plan.repo}{revision} ({format_size(plan.total_bytes)}, "
        f"{format_size(plan.cached_bytes)} already here) to {folder}"
    )


class DownloadDisplay:
    """Shows what `hub.resolve` reports; nothing if it reports nothing.

    with DownloadDisplay() as display:
        hub.resolve(name, progress=display.progress, on_plan=display.on_plan)
    """

    def __init__(self) -> None:
        self._view: View | None = None

    def __enter__(self) -> "DownloadDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._view:
            self._view.close()

    def on_plan(self, plan: hub.DownloadPlan) -> None:
        """Say what is about to be downloaded."""
        console.say(announce(plan))
        self._view = open_view(plan.total_bytes, plan.cached_bytes)

    def progress(self, state: hub.DownloadProgress) -> None:
        """Show how far it is."""
        if self._view:
            self._view.update(state.done_bytes, state.file)
