"""`dgemma-mlx inspect`: every tensor of a checkpoint, or how far two checkpoints lie apart."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import print_json
from mlx_diffusiongemma.cli.loading import find_model
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.hub_cache import format_size

if TYPE_CHECKING:
    from mlx_diffusiongemma.convert.compare import TensorDifference
    from mlx_diffusiongemma.quantization import Quantization


def inspect_command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="`demo`, a folder or a Hub model; two for --diff."),
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help="Compare the numbers of two checkpoints.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", metavar="PATTERN", help="Only tensors of such a name.")
    ] = "*",
    revision: arguments.Revision = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """List the tensors of MODEL, from headers alone.

    With --diff the numbers of two checkpoints are read and compared, however each is packed.
    """
    wanted = 2 if diff else 1
    if len(models) != wanted:
        given = "1 model was" if len(models) == 1 else f"{len(models)} models were"
        raise ConfigError(
            f"{given} given, and this takes {wanted}",
            hint="`inspect MODEL` lists tensors, `inspect --diff MODEL MODEL` compares two",
        )
    folders = [find_model(name, revision) for name in models]
    if diff:
        from mlx_diffusiongemma.convert.compare import compare

        found = compare(*folders)
        differences = [each for each in found if fnmatchcase(each.parameter, only)]
        if as_json:
            print_json({"differences": [_difference_fields(each) for each in differences]})
        else:
            print("\n".join(difference_lines(differences)))
        return

    from mlx_diffusiongemma.checkpoint import read_tensors

    rows = [
        {
            "name": info.name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "bytes": info.nbytes,
            "file": info.file.name,
        }
        for info in read_tensors(folders[0]).values()
        if fnmatchcase(info.name, only)
    ]
    if as_json:
        print_json({"tensors": rows})
    else:
        print("\n".join(tensor_lines(rows)))


def tensor_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The tensors for people."""
    rows = list(rows)
    width = max((len(row["name"]) for row in rows), default=6)
    yield f"{'tensor':{width}}  {'dtype':5}  {'shape':>18}  {'size':>9}  file"
    for row in rows:
        shape = " x ".join(map(str, row["shape"]))
        size = format_size(row["bytes"])
        yield f"{row['name']:{width}}  {row['dtype']:5}  {shape:>18}  {size:>9}  {row['file']}"
    yield f"{len(rows)} tensors, {format_size(sum(row['bytes'] for row in rows))}"


def difference_lines(differences: "list[TensorDifference]") -> Iterator[str]:
    """The differences for people: a line for each tensor that differs, and a summary."""
    apart = [each for each in differences if each.largest]
    if apart:
        width = max(len(each.parameter) for each in apart)
        header = f"{'largest error':>13}  {'rms error':>9}  {'first':18}  second"
        yield f"{'tensor':{width}}  {header}"
        for each in apart:
            first, second = map(_packing, each.packings)
            yield (
                f"{each.parameter:{width}}  {each.largest:>13.2e}  {each.rms:>9.2e}  {first:18}  "
                f"{second}"
            )
    yield f"{len(differences)} tensors compared, {len(apart)} differ"
    if apart:
        worst = max(apart, key=lambda each: each.rms)
        yield f"largest rms error: {worst.rms:.2e}, `{worst.parameter}`"


def _packing(how: "Quantization | None") -> str:
    return f"{how.bits} bits g{how.group_size} {how.mode}" if how else "not packed"


def _difference_fields(each: "TensorDifference") -> dict[str, Any]:
    return {
        "name": each.parameter,
        "class": each.tensor_class,
        "shape": list(each.shape),
        "packings": [how and vars(how) for how in each.packings],
        "largest_error": each.largest,
        "rms_error": each.rms,
    }
