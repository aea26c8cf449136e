"""A whole conversion: find the source, plan, stream the tensors, write the rest of the folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from mlx_diffusiongemma import hub, hub_remote
from mlx_diffusiongemma.convert.card import card
from mlx_diffusiongemma.convert.folder import copy_files, write_file
from mlx_diffusiongemma.convert.plan import MAX_SHARD_BYTES, plan
from mlx_diffusiongemma.convert.records import ConversionPlan, Layout, Progress, StreamResult
from mlx_diffusiongemma.convert.report import ConversionReport, report
from mlx_diffusiongemma.convert.stream import run
from mlx_diffusiongemma.recipes import DEFAULT_RECIPE, Recipe, find_recipe

OnProgress = Callable[[Progress], None]


def convert_checkpoint(
    source: str | Path,
    output: str | Path,
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    progress: OnProgress | None = None,
    resume: bool = False,
    verify: bool = True,
    keep_vision: bool = True,
    allow_unknown: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    revision: str | None = None,
    low_disk: bool = False,
    layout: Layout = "mlx",
) -> ConversionReport:
    """Convert the checkpoint `source` into the folder `output`.

    Args:
        source: a folder, or a Hub model, which is downloaded first.
        output: the folder to make; it appears when everything in it is complete.
        recipe: the name of one of `RECIPES`, or a recipe of your own.
        progress: called as bytes of the output are written.
        resume: go on where an interrupted conversion to the same output stopped.
        verify: read the output back and compare it with what was meant to be written.
        keep_vision: keep the tensors of the image side, as they are.
        allow_unknown: leave out tensors that nobody knows instead of stopping.
        max_shard_bytes: largest file, except where one tensor is larger.
        revision: branch, tag or commit of a Hub model.
        low_disk: fetch a Hub model's files one by one and delete each after use.
        layout: `mlx`, or `transformers` for a folder that transformers loads.

    CheckpointError, ConfigError or HubError when it cannot be done; `output` is untouched then.
    """
    output = Path(output)
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    remote = None
    if low_disk:
        remote = hub_remote.open_remote(str(source), working_folder(output), revision=revision)
    folder = remote.folder if remote else hub.resolve(str(source), revision=revision)
    try:
        found = plan(
            folder,
            chosen,
            keep_vision=keep_vision,
            allow_unknown=allow_unknown,
            max_shard_bytes=max_shard_bytes,
            layout=layout,
        )
        return carry_out(
            found,
            output,
            source_name=hub_name(str(source)),
            remote=remote,
            progress=progress,
            resume=resume,
            verify=verify,
        )
    finally:
        if remote:
            remote.give_up()  # does nothing once a conversion has ended well


def carry_out(
    plan: ConversionPlan,
    output: Path,
    *,
    source_name: str | None = None,
    remote: hub_remote.Remote | None = None,
    progress: OnProgress | None = None,
    resume: bool = False,
    verify: bool = True,
) -> ConversionReport:
    """Do what the plan says. `remote` brings the source's files when they are needed."""
    result = run(
        plan,
        output,
        resume=resume,
        verify=verify,
        digests=remote.digests if remote else None,
        before_read=remote.fetch if remote else None,
        after_read=remote.release if remote else None,
        finish=lambda folder, result: _write_rest(plan, folder, result, source_name),
        progress=progress,
    )
    if remote:
        remote.close()
    return report(plan, output=output, result=result)


def hub_name(source: str) -> str | None:
    """The source's name on the Hub; None when it is a folder."""
    return None if source == hub.DEMO or os.path.exists(os.path.expanduser(source)) else source


def working_folder(output: Path) -> Path:
    """Where a Hub model's files lie while each is in use, beside the output."""
    whole = Path(os.path.abspath(output))  # also `.`, which has no name
    return whole.with_name(f".{whole.name}.source")


def _write_rest(
    plan: ConversionPlan, folder: Path, result: StreamResult, source_name: str | None
) -> None:
    """Write what a checkpoint folder holds besides its tensors."""
    copy_files(plan.source, folder, plan.copied)
    config = json.dumps(plan.config, indent=2, ensure_ascii=False) + "\n"
    write_file(folder / "config.json", config.encode())
    text = card(plan, report(plan, result=result), source_name=source_name)
    write_file(folder / "README.md", text.encode())
