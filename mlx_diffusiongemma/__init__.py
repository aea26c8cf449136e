"""Run DiffusionGemma locally on Apple silicon with MLX.

    from mlx_diffusiongemma import GenerationOptions, load

    runtime = load("demo")
    print(runtime.generate("2 + 2 =", GenerationOptions(seed=1)).text)

Names are imported when they are first used, so that the command line's help needs no MLX.
"""

import importlib
import os
from typing import TYPE_CHECKING

from mlx_diffusiongemma.backend import require_backend
from mlx_diffusiongemma.chips import chip_name, prepare_mlx
from mlx_diffusiongemma.version import __version__

if TYPE_CHECKING:
    from mlx_diffusiongemma.batch import BatchAnswer, BatchRequest
    from mlx_diffusiongemma.choosing import ChoiceResult, ChoiceStats
    from mlx_diffusiongemma.constraints import CanvasConstraint
    from mlx_diffusiongemma.draws import (
        Draws,
        DrawTrace,
        RecordingDraws,
        ReplayedDraws,
        SeededDraws,
    )
    from mlx_diffusiongemma.errors import (
        CheckpointError,
        ConfigError,
        ConstraintError,
        ConversionError,
        DGemmaError,
        GenerationError,
        HubError,
        MemoryNeedError,
        PromptCacheError,
        PromptError,
        TraceError,
    )
    from mlx_diffusiongemma.events import (
        BlockCommitted,
        DenoisingStep,
        Event,
        Finished,
        GenerationResult,
        GenerationStats,
        PromptProcessed,
        TokenWritten,
    )
    from mlx_diffusiongemma.model import DiffusionGemma, KVCache
    from mlx_diffusiongemma.options import GenerationOptions, SamplerSettings, TokenSettings
    from mlx_diffusiongemma.runtime import Runtime, load, load_model
    from mlx_diffusiongemma.session import Session

prepare_mlx(os.environ, chip_name())
require_backend()

_HOME = {
    "batch": ("BatchAnswer", "BatchRequest"),
    "choosing": ("ChoiceResult", "ChoiceStats"),
    "constraints": ("CanvasConstraint",),
    "draws": ("Draws", "DrawTrace", "RecordingDraws", "ReplayedDraws", "SeededDraws"),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "ConstraintError",
        "ConversionError",
        "DGemmaError",
        "GenerationError",
        "HubError",
        "MemoryNeedError",
        "PromptCacheError",
        "PromptError",
        "TraceError",
    ),
    "events": (
        "BlockCommitted",
        "DenoisingStep",
        "Event",
        "Finished",
        "GenerationResult",
        "GenerationStats",
        "PromptProcessed",
        "TokenWritten",
    ),
    "model": ("DiffusionGemma", "KVCache"),
    "options": ("GenerationOptions", "SamplerSettings", "TokenSettings"),
    "runtime": ("Runtime", "load", "load_model"),
    "session": ("Session",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BatchAnswer",
    "BatchRequest",
    "BlockCommitted",
    "CanvasConstraint",
    "CheckpointError",
    "ChoiceResult",
    "ChoiceStats",
    "ConfigError",
    "ConstraintError",
    "ConversionError",
    "DGemmaError",
    "DenoisingStep",
    "DiffusionGemma",
    "DrawTrace",
    "Draws",
    "Event",
    "Finished",
    "GenerationError",
    "GenerationOptions",
    "GenerationResult",
    "GenerationStats",
    "HubError",
    "KVCache",
    "MemoryNeedError",
    "PromptCacheError",
    "PromptError",
    "PromptProcessed",
    "RecordingDraws",
    "ReplayedDraws",
    "Runtime",
    "SamplerSettings",
    "SeededDraws",
    "Session",
    "TokenSettings",
    "TokenWritten",
    "TraceError",
    "__version__",
    "load",
    "load_model",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"))[name]


def __dir__() -> list[str]:
    return __all__
