"""Denoise one canvas: the only loop over denoising steps.

    random canvas --> predict --> logits / T --> candidates, accept, renoise --> next canvas
          ^              ^            |                                              |
          |              +------------+ self-conditioning                            |
          +--------------------------------------------------------------------------+

The loop yields a `DenoisingStep` after every decoder pass and never prints, decodes or keeps time.
The passes themselves it asks for: see `passes`.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import mlx.core as mx

from mlx_diffusiongemma import kernels, sampling
from mlx_diffusiongemma.acceptance import SAMPLERS
from mlx_diffusiongemma.constraints.canvas_rules import CanvasRules, Reading
from mlx_diffusiongemma.draws import Draws
from mlx_diffusiongemma.errors import GenerationError
from mlx_diffusiongemma.events import DenoisingStep
from mlx_diffusiongemma.kernels import Belief, Digest, Logits, LogitStatistics
from mlx_diffusiongemma.options import SMALLEST_CANVAS, SamplerSettings
from mlx_diffusiongemma.passes import Answer, Evaluate, Pass, Predict, carried_out
from mlx_diffusiongemma.stopping import BEGINNING, STOP_RULES, Shown, standing_of

Digester = Callable[[Logits, LogitStatistics], Digest]
_SHRINK_STEP = 8  # positions; a canvas is cut to a multiple of this


def denoise(
    predict: Callable[[mx.array, mx.array | None], mx.array],
    draws: Draws,
    settings: SamplerSettings,
    *,
    canvas_length: int,
    vocab_size: int,
    shrink_at: frozenset[int] = frozenset(),
) -> Generator[DenoisingStep, None, DenoisingStep]:
    """`denoising_loop` with its passes done by `predict`, for predictions from anywhere.

    `predict(canvas, previous_logits)` is the decoder bound to its KV cache: int32 [1, L] and the
    temperature-scaled logits of the step before (None at first) to float32 logits [1, L, V].
    """
    loop = denoising_loop(
        draws, settings, canvas_length=canvas_length, vocab_size=vocab_size, shrink_at=shrink_at
    )

    def answer(asked: Predict) -> Logits:
        previous = None if asked.belief is None else asked.belief.logits.values()
        return Logits(predict(asked.canvas, previous))

    return carried_out(loop, answer, _nothing_to_read)


def denoising_loop(
    draws: Draws,
    settings: SamplerSettings,
    *,
    canvas_length: int,
    vocab_size: int,
    canvas_index: int = 0,
    shrink_at: frozenset[int] = frozenset(),
    rules: CanvasRules | None = None,
    digest: Digester | None = None,
) -> Generator[Pass | DenoisingStep, Answer, DenoisingStep]:
    """Yield steps until the stop rule says that the canvas is done, or the steps run out.

    The text is the argmax canvas of the last step, which is returned too. GenerationError when the
    logits are not numbers.

    With end tokens in `shrink_at` the canvas gets shorter where two steps agree on the first of
    them: later steps cost less, and see less. A canvas with `rules` keeps its length. `digest`
    lets a step tell the next one its likeliest tokens only, where they suffice.
    """
    shape = (1, canvas_length)
    canvas = _beginning(draws.initial_canvas(shape, vocab_size), rules)
    belief: Belief | None = None
    history, standing = list[Shown](), BEGINNING
    for step in range(settings.max_denoising_steps):
        answer, reading = yield from _predicted(Predict(canvas, belief), rules)
        belief = None  # its logits are large, and not needed any more
        before = history[-1] if history else None
        scaled, answer = _scaled(answer, step, settings), None
        taken = advance(scaled, canvas, before, draws, settings, vocab_size, reading, digest)
        del scaled
        canvas, now = taken.canvas, taken.shown
        yield Evaluate(taken.small_arrays())
        mean_entropy, best_changed, accepted_changed, not_finite = taken.numbers()
        if not_finite:
            raise _not_finite(canvas_index, step)
        standing = standing.after(mean_entropy, best_changed > 0, accepted_changed > 0)
        converged = STOP_RULES[settings.stop_rule](standing, settings)
        converged = converged and step + 1 >= settings.min_denoising_steps
        reported = DenoisingStep(
            canvas_index=canvas_index,
            step=step,
            max_denoising_steps=settings.max_denoising_steps,
            argmax_canvas=now.argmax_canvas,
            accepted=now.accepted,
            entropy=now.entropy,
            converged=converged,
        )
        yield reported
        if converged or step + 1 == settings.max_denoising_steps:
            break
        belief = taken.belief.settled()
        del taken
        history = [*history, now][-max(settings.stability_threshold, 2) :]
        if shrink_at and (keep := _shrunk_length(history, shrink_at)) < shape[1]:
            shape = (1, keep)
            canvas, belief = canvas[:, :keep], belief.first(keep)
            history = [shown.first(keep) for shown in history]
            standing = standing_of(history)
    return reported


class Taken(NamedTuple):
    """What a step comes to; see `advance`."""

    canvas: mx.array
    shown: Shown
    summary: mx.array
    belief: Belief

    def small_arrays(self) -> tuple[mx.array, ...]:
        """Everything but logits."""
        shown = self.shown.argmax_canvas, self.shown.accepted, self.shown.entropy
        return (self.canvas, self.summary, *shown, *self.belief.small_arrays())

    def numbers(self) -> list[float]:
        """The summary of the first canvas, read from the device."""
        numbers: list[float] = self.summary[0].tolist()  # type: ignore[assignment]
        return numbers


def advance(
    logits: Logits,
    canvas: mx.array,
    before: Shown | None,
    draws: Draws,
    settings: SamplerSettings,
    vocab_size: int,
    reading: Reading | None = None,
    digest: Digester | None = None,
) -> Taken:
    """Everything of a step that follows the network; left lazy, but for what a constraint reads.

    Args:
        logits: [1, L, V], at the temperature of the step.
        canvas: int32 [1, L], what they were predicted from.
        before: what the step before has shown; None at the first.
        draws, settings, vocab_size: as in `denoising_loop`.
        reading: what the logits come to under a constraint, which has masked them.
        digest: what digests them for the next step; None tells it everything.

    Returns:
        the next canvas int32 [1, L]; what this step shows; its summary, see `kernels.renew`, which
        says at the first step that nothing has changed; what the next step is told.
    """
    logits = kernels.prepared(logits)
    statistics = sampling.logit_statistics(logits)
    short = None if digest is None else digest(logits, statistics)
    if reading is not None:
        statistics = statistics._replace(best=reading.best)
    accepted, tokens = SAMPLERS[settings.sampler](
        logits, statistics, canvas, before, draws, settings
    )
    now = Shown(statistics.best, accepted, statistics.entropy)
    since = now if before is None else before
    noise = draws.renoise((1, canvas.shape[1]), vocab_size)
    if reading is not None:
        tokens, noise = reading.joined(tokens, accepted), reading.noise(noise)
    canvas, summary = kernels.renew(
        accepted, tokens, noise, statistics, since.accepted, since.argmax_canvas
    )
    return Taken(canvas, now, summary, Belief(logits, statistics.normaliser, short))


def _beginning(canvas: mx.array, rules: CanvasRules | None) -> mx.array:
    return canvas if rules is None else rules.noise(canvas)


def _predicted(
    asked: Predict, rules: CanvasRules | None
) -> Generator[Pass, Answer, tuple[Answer, Reading | None]]:
    """What the network says, and what it comes to under the rules."""
    answer = yield asked
    if rules is None or answer is None:
        return answer, None
    values = answer.values()
    yield Evaluate((values,))
    masked = rules.masked(values)
    del values
    return Logits(masked), rules.read(masked)


def _nothing_to_read(tokens: list[int]) -> None:
    raise AssertionError("one canvas reads nothing")


def _scaled(logits: Answer, step: int, settings: SamplerSettings) -> Logits:
    assert logits is not None
    most = settings.max_denoising_steps
    heat = sampling.temperature(most - step, most, t_min=settings.t_min, t_max=settings.t_max)
    return logits.at(heat)


def _not_finite(canvas_index: int, step: int) -> GenerationError:
    return GenerationError(
        f"the logits of canvas {canvas_index + 1}, denoising step {step + 1} are not finite "
        "numbers",
        hint="try `--dtype float32`; if it stays, the checkpoint is damaged",
    )


def _shrunk_length(history: Sequence[Shown], end_token_ids: frozenset[int]) -> int:
    """How much of the canvas is left when what follows a settled end token is cut off."""
    rows = [shown.argmax_canvas[0].tolist() for shown in history[-2:]]
    ends = [
        next((i for i, token in enumerate(row) if token in end_token_ids), len(row))  # type: ignore[arg-type]
        for row in rows
    ]
    length = len(rows[-1])  # type: ignore[arg-type]
    if len(ends) < 2 or ends[0] != ends[1]:
        return length
    return min(length, max(SMALLEST_CANVAS, -(-(ends[1] + 1) // _SHRINK_STEP) * _SHRINK_STEP))
