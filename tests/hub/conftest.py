"""A fake Hub, an empty cache, and a process that downloads from the one into the other."""

import json
import shutil

import pytest
from fake_hub import FakeHub
from hub_runs import NAME, start

from mlx_diffusiongemma.hub_cache import ModelCache


@pytest.fixture(scope="session")
def the_hub():
    with FakeHub() as hub_on_loopback:
        yield hub_on_loopback


@pytest.fixture
def fake(the_hub):
    """The Hub without repositories and without faults."""
    the_hub.reset()
    return the_hub


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture
def cache(home):
    """Where the model NAME goes."""
    return ModelCache(home / "hf" / "hub", NAME)


@pytest.fixture(scope="session")
def client(the_hub, home):
    """The process that most calls share: starting one takes half a second."""
    with start(the_hub.url, home) as process:
        yield process
        _, errors = process.communicate(timeout=30)
    # Nothing but the answers: no bar, no traceback.
    assert errors == ""


@pytest.fixture
def resolve(fake, home, client):
    """Resolve one call, given as keywords; one with `env` or `wrap` gets a process of its own."""
    shutil.rmtree(home / "hf", ignore_errors=True)

    def run(name=NAME, *, env=None, wrap=(), **call):
        asked = json.dumps({"name": name, **call}) + "\n"
        if env is None and not wrap:
            client.stdin.write(asked)
            client.stdin.flush()
            return json.loads(client.stdout.readline())
        with start(fake.url, home, env, wrap) as process:
            try:
                answer, errors = process.communicate(asked, timeout=30)
            finally:
                process.kill()
        assert errors == ""
        return json.loads(answer)

    return run
