"""What happens to kernels before a model writes anything: they are timed once, and tried each time.

    load --> sites that the model meets --> those never measured here: tuned, remembered in a file
         --> the kernels that were chosen: compiled, computed, compared; who fails is banned

A choice that came during a generation could change the text between the first run and the second.
"""

import logging
import os

import mlx.core as mx

from mlx_diffusiongemma.denoising import advance
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.kernels import choices, dispatch, tuning
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.options import SamplerSettings

logger = logging.getLogger(__name__)

SWITCH = "DGEMMA_TUNE"  # environment variable; with 0 a load measures nothing
LONG_PROMPT = 600  # tokens: kernels of long prompts begin at 513


def prepare(model: DiffusionGemma, *, measure: bool = True) -> None:
    """Measure what was never measured on this machine, and try what is chosen.

    Nothing where there is no GPU, or where kernels are switched off.
    """
    if not dispatch.has_kernels() or os.environ.get(dispatch.SWITCH) == "0":
        return
    if measure and os.environ.get(SWITCH) != "0":
        _measure_what_is_new(model)
    build_two_steps(model)


def build_two_steps(model: DiffusionGemma) -> None:
    """The graph of a long prompt and two denoising steps: every operation is asked whether its
    kernels run, and those that do have their trial. The model itself is not computed."""
    config, settings = model.config, SamplerSettings()
    cache = model.make_cache()
    cache.expect(LONG_PROMPT + config.canvas_length)
    model.read_lazily(mx.full((1, LONG_PROMPT), 3, mx.int32), cache)
    canvas, before, belief = mx.zeros((1, config.canvas_length), mx.int32), None, None
    draws = SeededDraws(0)
    for _ in range(2):
        logits = model.predict(canvas, cache, belief).at(settings.t_max)
        taken = advance(logits, canvas, before, draws, settings, config.vocab_size)
        canvas, before, belief = taken.canvas, taken.shown, taken.belief


def _measure_what_is_new(model: DiffusionGemma) -> None:
    path = choices.default_path()
    with dispatch.meeting() as met, dispatch.unlaunched():
        build_two_steps(model)
    known = choices.read(path)
    # Met in every layer; of one name the last, which has the rows of a canvas.
    new = {site.name: site for site in met if site.name not in known}
    if not new:
        return
    logger.info("timing %d kinds of kernels, once for this device", len(new))
    verdicts = tuning.verdicts(new.values())
    banned = [
        f"{name} ({each.banned[one]})" for name, each in verdicts.items() for one in each.banned
    ]
    if banned:
        logger.warning("kernels that fail here are not used: %s", "; ".join(banned))
    try:
        choices.write(path, known | {name: each.as_fields() for name, each in verdicts.items()})
    except OSError as error:
        # Without a file the next run would choose anew, and might write another text.
        logger.warning("what is fastest here cannot be remembered, and is not used: %s", error)
    choices.forget()
