"""Our model as the subject of a recording."""

import platform
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.device import on_cpu
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.events import BlockCommitted, DenoisingStep
from mlx_diffusiongemma.generation import alone, block_loop
from mlx_diffusiongemma.kernels import Logits, LogitStatistics
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.given_draws import GivenDraws
from mlx_diffusiongemma.parity.recording import Generated, Observed
from mlx_diffusiongemma.parity.taps import observing
from mlx_diffusiongemma.parity.trace import Arrays, GenerationCase, ModelFacts, Producer
from mlx_diffusiongemma.prefix_cache import PrefixCache
from mlx_diffusiongemma.runtime import load_model
from mlx_diffusiongemma.version import __version__

_DTYPE_CLASS = {mx.float32: "fp32", mx.float16: "fp16", mx.bfloat16: "bf16"}
_MOST_NARROW = 4  # bits; a weight of more counts as one of eight


class OurModel:
    """A `DiffusionGemma` that can be recorded."""

    def __init__(self, model: DiffusionGemma, facts: ModelFacts):
        self._model = model
        self.facts = facts
        self.producer = Producer(
            backend="mlx",
            device="cpu" if on_cpu() else f"gpu {mx.device_info().get('device_name', '')}".strip(),
            dtype=str(model.compute_dtype).removeprefix("mlx.core."),
            precision=precision_of(model),
            versions={
                "python": platform.python_version(),
                "mlx": version("mlx"),
                "mlx-diffusiongemma": __version__,
            },
        )
        self.reset()

    @classmethod
    def open(
        cls, folder: Path, name: str, *, dtype: str | None = None, force: bool = False
    ) -> "OurModel":
        """Load the checkpoint in `folder`, which the user called `name`."""
        return cls(load_model(folder, dtype=dtype, force=force), model_facts(folder, name))

    def reset(self) -> None:
        """See `Subject`."""
        self._cache = self._model.make_cache()

    def prefill(self, ids: np.ndarray, rows: np.ndarray) -> Observed:
        """See `Subject`."""
        with observing(self._model, rows) as observation:
            mx.eval(self._model.prefill(mx.array(ids[None]), self._cache))
        notes = observation.notes()
        hidden = mx.array(notes[None, "final_norm"]).astype(self._model.compute_dtype)
        return Observed(notes, np.array(self._model.head(hidden[None])[0]))

    def denoise(
        self, canvas: np.ndarray, previous: np.ndarray | None, rows: np.ndarray
    ) -> Observed:
        """See `Subject`."""
        fed = None if previous is None else mx.array(previous[None])
        with observing(self._model, rows) as observation:
            logits = self._model.denoise(mx.array(canvas[None]), self._cache, fed)
        return Observed(observation.notes(), np.array(logits[0]))

    def generate(self, case: GenerationCase, prompt: np.ndarray, given: Arrays) -> Generated:
        """See `Subject`."""
        draws = _PlacedDraws(given)
        cache = PrefixCache(self._model)
        loop = block_loop(
            self._model.config,
            prompt.tolist(),
            cache,
            draws=draws,
            settings=case.settings,
            max_tokens=case.max_tokens,
            eos_token_ids=frozenset(case.eos_token_ids),
        )
        events = list(alone(loop, cache))
        steps = [event for event in events if isinstance(event, DenoisingStep)]
        blocks = [event for event in events if isinstance(event, BlockCommitted)]
        answer = [token for block in blocks for token in block.token_ids]
        return Generated(
            {
                "prompt": prompt,
                **draws.drawn(),
                "argmax": np.concatenate([np.array(step.argmax_canvas) for step in steps]),
                "accepted": np.concatenate([np.array(step.accepted) for step in steps]),
                "entropy": np.concatenate([np.array(step.entropy) for step in steps]),
                "steps": np.array([block.denoising_steps for block in blocks], np.int32),
                "converged": np.array([block.converged for block in blocks]),
                "answer": np.array(answer, np.int32),
            }
        )


class _PlacedDraws:
    """`Draws` from a recording, each at its place; from seed 0 where it has none."""

    def __init__(self, given: Arrays):
        self._given = GivenDraws(given)
        self._seeded = SeededDraws(0)
        self._drawn: dict[str, list[np.ndarray]] = {"initial": [], "candidates": [], "renoise": []}

    def initial_canvas(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        self._given.next_canvas()
        return self._keep("initial", self._seeded.initial_canvas(shape, vocab_size))

    def candidates(self, logits: Logits, statistics: LogitStatistics) -> mx.array:
        """See `Draws`."""
        self._given.next_step()
        return self._keep("candidates", self._seeded.candidates(logits, statistics))

    def renoise(self, shape: tuple[int, int], vocab_size: int) -> mx.array:
        """See `Draws`."""
        return self._keep("renoise", self._seeded.renoise(shape, vocab_size))

    def drawn(self) -> dict[str, np.ndarray]:
        """Everything that was handed out, [canvases or steps, L]."""
        return {name: np.stack(rows) for name, rows in self._drawn.items()}

    def _keep(self, name: str, instead: mx.array) -> mx.array:
        row = self._given.row(name)
        row = np.array(instead[0]) if row is None else row
        self._drawn[name].append(row)
        return mx.array(row[None])


def precision_of(model: DiffusionGemma) -> str:
    """The class of a loaded model: its narrowest packed weights, or else its dtype."""
    bits = [how.bits for how in _packings(model.config)]
    if bits:
        return "4-bit" if min(bits) <= _MOST_NARROW else "8-bit"
    return _DTYPE_CLASS[model.compute_dtype]


def _packings(config: ModelConfig) -> list:
    table = config.quantization
    return [how for how in (table.default, *table.overrides.values()) if how is not None]
