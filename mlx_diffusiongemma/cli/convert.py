"""`dgemma-mlx convert`: a checkpoint in, an MLX checkpoint of chosen precision out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mlx_diffusiongemma import hub_remote
from mlx_diffusiongemma.cli import arguments, convert_arguments
from mlx_diffusiongemma.cli.byte_progress import View, open_view
from mlx_diffusiongemma.cli.console import note, print_json, say
from mlx_diffusiongemma.cli.convert_arguments import RecipeChoice, choose_recipe, parse_size
from mlx_diffusiongemma.cli.loading import check_backend, find_model
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.hub import DownloadProgress

if TYPE_CHECKING:
    from mlx_diffusiongemma.convert.records import ConversionPlan, Progress
    from mlx_diffusiongemma.convert.report import ConversionReport


def convert_command(
    source: convert_arguments.SourceArgument = None,
    hf_path: convert_arguments.HfPath = None,
    output: convert_arguments.Output = None,
    recipe: convert_arguments.RecipeName = None,
    list_recipes: convert_arguments.ListRecipes = False,
    quantize: convert_arguments.Quantize = False,
    bits: convert_arguments.Bits = None,
    group_size: convert_arguments.GroupSize = None,
    mode: convert_arguments.Mode = None,
    overrides: convert_arguments.Overrides = None,
    search: convert_arguments.Search = None,
    dtype: convert_arguments.OutputDtype = None,
    dequantize: convert_arguments.Dequantize = False,
    keep_vision: convert_arguments.KeepVision = True,
    allow_unknown: convert_arguments.AllowUnknown = False,
    max_shard_size: convert_arguments.MaxShardSize = "5GB",
    dry_run: convert_arguments.DryRun = False,
    verify: convert_arguments.Verify = True,
    resume: convert_arguments.Resume = False,
    low_disk: convert_arguments.LowDisk = False,
    upload_repo: convert_arguments.UploadRepo = None,
    revision: arguments.Revision = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Convert SOURCE into the MLX checkpoint DIR.

    By default experts get 4 bits and the rest 8. The result appears when it is complete; an
    interrupted run goes on with --resume.
    """
    packing = (quantize, bits, group_size, mode, tuple(overrides or ()), dtype, search)
    chosen = choose_recipe(RecipeChoice(recipe, *packing, dequantize=dequantize))
    max_shard_bytes = parse_size(max_shard_size)
    name = _one_source(source, hf_path)
    target = None if dry_run else _target(output, resume)
    if target and upload_repo is not None:
        hub_remote.check_upload(upload_repo)
    with _open_source(name, revision, target, low_disk) as (folder, remote):
        from mlx_diffusiongemma.convert.plan import plan

        found = plan(
            folder,
            chosen,
            keep_vision=keep_vision,
            allow_unknown=allow_unknown,
            max_shard_bytes=max_shard_bytes,
            layout="transformers" if dequantize else "mlx",
        )
        if target is None:
            _show_plan(found, as_json)
            return
        done = _carry_out(found, target, name, remote=remote, resume=resume, verify=verify)
    _show_report(done, as_json)
    if target and upload_repo is not None:
        say(f"uploaded to {hub_remote.upload(target, upload_repo)}")


def _target(output: str | None, resume: bool) -> Path:
    """The folder to make; what is in its way is said before anything is fetched."""
    if not output:
        raise ConfigError("there is no --out", hint="name the folder to make, or use --dry-run")
    target = Path(output).expanduser()
    if not resume:
        check_backend()

        from mlx_diffusiongemma.convert.journal import check_free

        check_free(target)
    return target


@contextmanager
def _open_source(
    name: str, revision: str | None, target: Path | None, low_disk: bool
) -> Iterator[tuple[Path, hub_remote.Remote | None]]:
    """The folder of the source, and what fetches its files when they are needed.

    Without a target, headers are all that is fetched of a Hub model that is not here.
    """
    check_backend()

    from mlx_diffusiongemma.convert.conversion import hub_name, working_folder

    if target and low_disk:
        remote = hub_remote.open_remote(name, working_folder(target), revision=revision)
        try:
            yield remote.folder, remote
        finally:
            remote.give_up()  # does nothing once a conversion has ended well
    elif target or hub_name(name) is None or hub_remote.is_here(name, revision):
        yield find_model(name, revision), None
    else:
        with TemporaryDirectory() as scratch:
            remote = hub_remote.open_remote(name, Path(scratch), revision=revision)
            yield remote.folder, None


def _show_plan(plan: "ConversionPlan", as_json: bool) -> None:
    from mlx_diffusiongemma.convert.report import report
    from mlx_diffusiongemma.convert.table import describe_plan

    if as_json:
        print_json(report(plan).as_fields())
    else:
        print(describe_plan(plan))


def _show_report(report: "ConversionReport", as_json: bool) -> None:
    from mlx_diffusiongemma.convert.table import describe_report

    if as_json:
        print_json(report.as_fields())
    else:
        print(describe_report(report))


def _one_source(source: str | None, hf_path: str | None) -> str:
    if source and hf_path and source != hf_path:
        raise ConfigError(
            f"SOURCE is {source!r} and --hf-path is {hf_path!r}", hint="give one of them"
        )
    name = source or hf_path
    if not name:
        raise ConfigError("there is no SOURCE", hint="give a folder or a Hub model")
    return name


def _carry_out(
    plan: "ConversionPlan",
    target: Path,
    name: str,
    *,
    remote: hub_remote.Remote | None,
    resume: bool,
    verify: bool,
) -> "ConversionReport":
    from mlx_diffusiongemma.convert.conversion import carry_out, hub_name
    from mlx_diffusiongemma.convert.journal import workspace_folder

    try:
        with _ProgressView() as view:
            if remote:
                remote = replace(remote, progress=view.fetching)
            return carry_out(
                plan,
                target,
                source_name=hub_name(name),
                remote=remote,
                progress=view.update,
                resume=resume,
                verify=verify,
            )
    except KeyboardInterrupt:
        if workspace_folder(target).exists():
            note("what is finished is kept; the same command with --resume goes on from there")
        else:
            note("no file was finished yet, and nothing is left")
        raise


class _ProgressView:
    """Opens a view with the first progress, since a resumed run starts in the middle."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._done = 0

    def __enter__(self) -> "_ProgressView":
        return self

    def __exit__(self, *_: object) -> None:
        if self._view:
            self._view.close()

    def update(self, state: "Progress") -> None:
        """Show how far it is."""
        if self._view is None:
            self._view = open_view(state.total_bytes, state.done_bytes)
        self._done = state.done_bytes
        tensor = state.tensor.removeprefix("model.decoder.").removesuffix(".weight")
        self._view.update(state.done_bytes, tensor)

    def fetching(self, state: DownloadProgress) -> None:
        """Say which source file is on its way while the output waits for it."""
        if self._view:
            self._view.update(self._done, f"fetching {state.file}")
