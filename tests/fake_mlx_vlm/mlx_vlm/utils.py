"""Loading, without weights."""

from pathlib import Path

import mlx.core as mx


class Config:
    """What the worker reads of a model's configuration."""

    def __init__(self):
        self.generation_config = {"confidence_threshold": 0.005}


class Model:
    """Remembers the dtype that it was cast to."""

    def __init__(self):
        self.config = Config()
        self.dtype = None

    def set_dtype(self, dtype: mx.Dtype) -> None:
        """Cast."""
        self.dtype = dtype

    def parameters(self) -> dict[str, mx.array]:
        """No weights."""
        return {"weight": mx.zeros((2,), self.dtype)}


def load_model(folder: Path) -> Model:
    """A model of any folder that has a configuration."""
    assert (folder / "config.json").is_file()
    return Model()
