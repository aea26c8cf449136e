"""A tiny source checkpoint, in as many files as a test wants."""

import pytest
import tiny


@pytest.fixture(scope="session")
def values():
    return tiny.config_values()


@pytest.fixture(scope="session")
def tensors(values):
    return tiny.random_tensors(values)


@pytest.fixture
def write(tmp_path, values):
    """Write a checkpoint of the tiny model from one or more mappings of tensors."""

    def write_one(*files, name="source", **changes):
        return tiny.write_checkpoint(tmp_path / name, values | changes, *files)

    return write_one
