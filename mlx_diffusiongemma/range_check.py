"""Whether a model's activations fit float16, found out on the first prompt.

float16 ends at 65,504. The residual stream of the released model stays far below; another
fine-tune may not. So the first prompt is read once for this alone, and if the stream comes near
the end the model computes in bfloat16 from then on.
"""

import logging
from collections.abc import Sequence

import mlx.core as mx

from mlx_diffusiongemma.model import DiffusionGemma

logger = logging.getLogger(__name__)

LARGEST = (
    8192.0  # an eighth of what float16 holds: the experts' products are larger than the stream
)
_TOKENS = 256  # of the prompt that are read for it


class RangeCheck:
    """Looks at a model's first prompt, and at no other."""

    def __init__(self, model: DiffusionGemma):
        self._model = model
        self._is_due = True

    def on_prompt(self, prompt: Sequence[int]) -> bool:
        """True when the model has just been changed to bfloat16; caches made before are void."""
        if not self._is_due:
            return False
        peak = float(self._model.residual_peak(mx.array([prompt[:_TOKENS]], mx.int32)))
        self._is_due = False
        if peak <= LARGEST:  # not so for NaN either
            return False
        # Packed weights stay as they are; what was rounded to float16 keeps that rounding.
        self._model.set_dtype(mx.bfloat16)
        mx.eval(self._model.parameters())
        logger.warning(
            "activations reach %.3g, too much for float16: computing in bfloat16, which is slower "
            "on this chip; `--dtype bfloat16` loads the weights so",
            peak,
        )
        return True
