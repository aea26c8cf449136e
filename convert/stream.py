"""Carry a plan out: one slice after the other through bounded memory, shard after shard to disk.

    for each shard that is not finished: header, then for each tensor
      read rows -> cast or pack (MLX works on slice n + 1) -> hash and write slice n
    -> reopen and check -> journal -> next shard; at the end one rename

Whatever stops it, what is finished stays, and `resume` goes on with the next shard.
"""

import errno
import json
import math
import resource
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import mlx.core as mx

from mlx_diffusiongemma.checkpoint import INDEX
from mlx_diffusiongemma.convert.identity import source_digests
from mlx_diffusiongemma.convert.journal import FinishedShard, Workspace, write_text
from mlx_diffusiongemma.convert.pack import to_bits
from mlx_diffusiongemma.convert.records import (
    ConversionPlan,
    Progress,
    ShardPlan,
    StreamResult,
    TensorPlan,
)
from mlx_diffusiongemma.convert.slices import ErrorSum, Slice, slices
from mlx_diffusiongemma.convert.source import Source
from mlx_diffusiongemma.convert.verify import Sample, check_folder, check_shard
from mlx_diffusiongemma.convert.writer import PARTIAL, ShardWriter, WrittenFile
from mlx_diffusiongemma.errors import ConversionError

_IN_WORK = 2  # slices that MLX may work on while another one is written
_SPARE_BYTES = 64 << 20  # of disk for headers, journal and small files
_FULL = (errno.ENOSPC, errno.EDQUOT)

OnFile = Callable[[Path], None]


def run(
    plan: ConversionPlan,
    output: Path,
    *,
    resume: bool = False,
    verify: bool = True,
    digests: Mapping[str, str] | None = None,
    before_read: OnFile | None = None,
    after_read: OnFile | None = None,
    finish: Callable[[Path, StreamResult], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> StreamResult:
    """Write the checkpoint that `plan` describes to the folder `output`.

    Args:
        resume: go on with an interrupted run of the same plan, or start.
        verify: reopen and check what was written; finished shards are checked on resume anyway.
        digests: what tells the source's files from others, by name; None: samples of them do,
            which takes them to be here before `before_read`.
        before_read: called with a source file before its first byte is read.
        after_read: called with a source file that no unfinished tensor needs any more.
        finish: writes the files beside the tensors into the folder it is given, before that
            becomes `output`; may be called again on resume.
        progress: called after every slice.

    ConversionError when something is in the way, the disk is full or the result is not right;
    CheckpointError when the source is damaged. `output` appears only when it is whole.
    """
    started = time.perf_counter()
    cache_limit = mx.set_cache_limit(0)  # freed arrays would count as resident memory
    try:
        known = source_digests(plan) if digests is None else dict(digests)
        with Workspace(output, plan.fingerprint, known, resume=resume) as work:
            if not work.is_renamed:
                work.check_finished()
                _check_space(plan, work)
                with Source() as source:
                    supply = _Supply(source, before_read, after_read)
                    _write_shards(plan, work, supply, verify=verify, progress=progress)
                _write_index(plan, work.result)
            result = _result(work, started)
            if not work.is_renamed:
                if finish:
                    finish(work.result, result)
                if verify:
                    check_folder(work.result, plan, _written(work))
                work.publish()
            work.remove()
            return result
    except OSError as error:
        raise _explain(error, output) from error
    finally:
        mx.set_cache_limit(cache_limit)


def _write_shards(
    plan: ConversionPlan,
    work: Workspace,
    supply: "_Supply",
    *,
    verify: bool,
    progress: Callable[[Progress], None] | None,
) -> None:
    done = sum(shard.nbytes for shard in plan.shards if shard.file in work.journal.shards)
    todo = [shard for shard in plan.shards if shard.file not in work.journal.shards]
    supply.expect(todo)
    for shard in todo:
        samples: list[Sample] = []
        sums: dict[str, ErrorSum] = {}
        path = work.result / shard.file
        outputs = [output for tensor in shard.tensors for output in tensor.outputs]
        metadata = {"format": "mlx" if plan.layout == "mlx" else "pt"}
        with ShardWriter(path, outputs, metadata) as writer:
            for part in _in_work(supply.slices(shard, search=plan.recipe.search)):
                done += _write(part, writer, samples, sums)
                if progress:
                    progress(Progress(done, plan.nbytes, part.tensor.parameter))
            written = writer.finish()
        if verify:
            check_shard(path, shard, samples)
        is_searched = plan.recipe.search
        errors = {name: added.as_error(is_searched=is_searched) for name, added in sums.items()}
        work.record(shard.file, FinishedShard(written, errors))


class _Supply:
    """Slices of shards, saying which source files they are about to need and which no more."""

    def __init__(
        self, source: Source, before_read: OnFile | None, after_read: OnFile | None
    ) -> None:
        self._source = source
        self._before_read = before_read
        self._after_read = after_read
        self._here: set[Path] = set()
        self._last_user: dict[Path, TensorPlan] = {}

    def expect(self, shards: Iterable[ShardPlan]) -> None:
        """These are the shards that will be asked for."""
        for shard in shards:
            for tensor in shard.tensors:
                for file in tensor.files:
                    self._last_user[file] = tensor

    def slices(self, shard: ShardPlan, *, search: bool) -> Iterator[Slice]:
        """All slices of a shard in the order of its tensors."""
        for tensor in shard.tensors:
            needed = tensor.files
            for file in sorted(needed - self._here):
                if self._before_read:
                    self._before_read(file)
                self._here.add(file)
            yield from slices(tensor, self._source, search=search)
            for file in sorted(needed):
                if self._last_user[file] is tensor:
                    self._source.close(file)
                    if self._after_read:
                        self._after_read(file)


def _in_work(found: Iterable[Slice]) -> Iterator[Slice]:
    """The same slices, each handed on while MLX works on the next ones."""
    waiting: deque[Slice] = deque()
    for part in found:
        lazy = (*part.outputs, part.fits)
        mx.async_eval([array for array in lazy if isinstance(array, mx.array)])
        waiting.append(part)
        del part
        if len(waiting) > _IN_WORK:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def _write(
    part: Slice, writer: ShardWriter, samples: list[Sample], sums: dict[str, ErrorSum]
) -> int:
    """Write the rows of a slice; returns how many bytes these are."""
    tensor = part.tensor
    rows = []
    nbytes = 0
    if part.fits is not None and not part.fits.item():
        raise ConversionError(
            f"`{tensor.parameter}` holds values beyond {tensor.dtype}'s 65504",
            hint="convert to bfloat16",
        )
    for output, part_of_it in zip(tensor.outputs, part.outputs, strict=True):
        bits = to_bits(part_of_it) if isinstance(part_of_it, mx.array) else part_of_it
        writer.write(output.name, bits.data)
        rows.append(bits[:1].copy())
        nbytes += bits.nbytes
    is_copy = tensor.action == "copy"
    if is_copy or part.first_row is not None:
        values = None if part.first_row is None else to_bits(part.first_row)
        samples.append(Sample(tensor, part.rows.start, tuple(rows), values))
    if part.error is not None:
        sums.setdefault(tensor.parameter, ErrorSum()).add(part.error)
    return nbytes


def _write_index(plan: ConversionPlan, folder: Path) -> None:
    weight_map = {
        output.name: shard.file
        for shard in plan.shards
        for tensor in shard.tensors
        for output in tensor.outputs
    }
    values = {
        "metadata": {"total_size": plan.nbytes},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_text(folder / INDEX, json.dumps(values, indent=2) + "\n")


def _written(work: Workspace) -> dict[str, WrittenFile]:
    return {name: shard.file for name, shard in work.journal.shards.items()}


def _result(work: Workspace, started: float) -> StreamResult:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shards = work.journal.shards.values()
    return StreamResult(
        errors={name: error for shard in shards for name, error in shard.errors.items()},
        sha256={name: file.sha256 for name, file in _written(work).items()},
        peak_memory=peak if sys.platform == "darwin" else peak * 1024,
        seconds=time.perf_counter() - started,
    )


def _check_space(plan: ConversionPlan, work: Workspace) -> None:
    """ConversionError unless the disk has room for what is still to be written."""
    todo = [shard.nbytes for shard in plan.shards if shard.file not in work.journal.shards]
    needed = sum(todo) + _SPARE_BYTES
    free = shutil.disk_usage(work.folder).free
    if free < needed:
        raise ConversionError(
            f"the output needs {math.ceil(needed / 1e7) / 100:.2f} GB more, and the disk of "
            f"`{work.folder}` has {math.floor(free / 1e7) / 100:.2f} GB free",
            hint="free some space or name an output on another disk",
        )


def _explain(error: OSError, output: Path) -> ConversionError:
    where = error.filename or output
    if error.errno in _FULL:
        return ConversionError(
            f"the disk of `{where}` is full",
            hint="free some space, then go on with `--resume`: finished shards are kept",
        )
    if error.errno == errno.EFBIG:
        return ConversionError(
            f"a file of `{where}` would be larger than its disk allows",
            hint=f"convert with a smaller `--max-shard-size`; remove `{output}{PARTIAL}` before",
        )
    return ConversionError(
        f"cannot write `{where}`: {error.strerror}",
        hint="check the rights to this folder, then go on with `--resume`",
    )
