"""Errors a person can act on: each says what is wrong and, where we know it, what to do."""


class DGemmaError(Exception):
    """Base of every error this package raises on purpose.

    `str(error)` is one sentence about the values that are wrong; `hint` is what to do about it.
    """

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


class ConfigError(DGemmaError):
    """A setting has a value that the model cannot run with."""


class CheckpointError(DGemmaError):
    """The files on disk are not the checkpoint that the config describes."""


class HubError(DGemmaError):
    """A model could not be found or fetched."""


class PromptError(DGemmaError):
    """A prompt cannot be read by this model: too long, an image, an unknown role."""


class PromptCacheError(DGemmaError):
    """A prompt cache file cannot be used: damaged, or made with something else."""


class GenerationError(DGemmaError):
    """Generation had to stop: the numbers that came out cannot become text."""


class MemoryNeedError(DGemmaError):
    """The model and its caches need more memory than this device has."""


class ConversionError(DGemmaError):
    """A conversion cannot start, cannot go on, or did not write what it should have."""


class TraceError(DGemmaError):
    """A parity trace cannot be used: damaged, newer, or of another model."""


class ConstraintError(DGemmaError):
    """A constraint cannot be read, cannot be met, or cannot be met within the tokens there are."""
