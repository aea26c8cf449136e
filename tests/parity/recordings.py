"""Reading the fixtures: arrays by name, and what was written down about them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import safe_open

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MANIFEST = json.loads((FIXTURES / "MANIFEST.json").read_text())

Recording = dict[str, np.ndarray]


@cache
def read_arrays(path: Path) -> Recording:
    """Every array of a fixture."""
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_about(path: Path) -> dict:
    """What the recorder wrote down beside the arrays."""
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["about"])


def case_names(path: Path) -> list[str]:
    """The cases of a recording of passes."""
    with safe_open(path, framework="numpy") as file:
        return sorted({name.partition("/")[0] for name in file.keys()})  # noqa: SIM118


def read_case(path: Path, case: str) -> Recording:
    """The arrays of one case, by their names inside it."""
    arrays = read_arrays(path)
    return {k.removeprefix(f"{case}/"): v for k, v in arrays.items() if k.startswith(f"{case}/")}


def tiny_folder(name: str) -> Path:
    """The checkpoint of a tiny model."""
    return FIXTURES / "checkpoints" / name
