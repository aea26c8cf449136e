"""The device under test, and what its tests measure, written down as they end."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from places import Place

RESULTS = "DGEMMA_CUDA_RESULTS"  # file to which a line of JSON goes for every test


@pytest.fixture(params=[pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The CPU, and the GPU where there is one."""
    device = mx.gpu if request.param == "cuda" else mx.cpu

    def measured(name: str, value: float) -> None:
        request.node.user_properties.append((name, float(value)))

    yield Place(device, measured)
    mx.clear_cache()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each test: a run that is ended in the middle keeps what it had."""
    path = os.environ.get(RESULTS)
    if path is None or not (report.when == "call" or report.outcome != "passed"):
        return
    line = {
        "test": report.nodeid.rpartition("/")[2],
        "outcome": report.outcome,
        "seconds": round(report.duration, 3),
        "measured": {
            name: value if math.isfinite(value) else str(value)
            for name, value in report.user_properties
        },
    }
    if report.outcome == "failed":
        line["error"] = str(report.longrepr).splitlines()[-30:]
    elif report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        line["reason"] = report.longrepr[2]
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
