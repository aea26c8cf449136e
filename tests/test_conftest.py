"""The promises of conftest.py."""

import os
import socket
from pathlib import Path

import pytest


def test_connections_that_leave_the_machine_are_refused():
    with pytest.raises(ConnectionRefusedError, match=r"192\.0\.2\.1"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_loopback_is_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_the_home_and_the_hub_cache_are_temporary():
    assert Path.home().name.startswith("dgemma-tests-")
    assert Path(os.environ["HF_HOME"]).is_relative_to(Path.home())
    assert os.environ["HF_HUB_OFFLINE"] == "1"


_draws = []


@pytest.mark.parametrize("attempt", [1, 2])
def test_global_randomness_differs_between_tests(attempt):
    import mlx.core as mx

    _draws.append(mx.random.uniform(shape=(4,)).tolist())
    assert len(_draws) == len({tuple(draw) for draw in _draws})
