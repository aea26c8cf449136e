"""Count a denoising step of mlx-vlm in the way of `ledger`: run by an interpreter that has it.

usage: ledger_mlx_vlm.py CONTEXT CANVAS TEXT_CONFIG_JSON PATTERNS_JSON

It needs nothing of this package but the file `graph.py` beside it. Prints JSON: for each pattern of
layers what a pass launches and writes, and what a whole step does with the entropy-bound sampler
and with the program's own default, composed as in its loop out of its own functions.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

_SPEC = importlib.util.spec_from_file_location("graph", Path(__file__).with_name("graph.py"))
assert _SPEC is not None and _SPEC.loader is not None
graph = importlib.util.module_from_spec(_SPEC)
sys.modules["graph"] = graph
_SPEC.loader.exec_module(graph)


def _one_launch(function: Callable[..., mx.array] | None = None, **options: Any) -> Any:
    """In place of `mx.compile`: elementwise functions, one launch each."""
    if function is None:
        return _one_launch
    return graph.one_node("compiled_" + function.__name__.strip("_"), function)


mx.compile = _one_launch  # type: ignore  # before anything is decorated with it

from mlx import nn  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_vlm.generate import diffusion  # type: ignore # noqa: E402
from mlx_vlm.models.diffusion_gemma import Model, ModelConfig  # type: ignore # noqa: E402

_TEMPERATURE, _BOUND, _THRESHOLD = 0.8, 0.1, 0.9


class _Traced:
    """A model with some layers, packed as its authors pack it: nothing of it is ever computed."""

    def __init__(self, text: dict[str, Any], kinds: Sequence[str], context: int, canvas: int):
        layer_types = [f"{kind}_attention" for kind in kinds]
        text = text | {"layer_types": layer_types, "num_hidden_layers": len(layer_types)}
        values = {"model_type": "diffusion_gemma", "text_config": text, "vision_config": None}
        self.model = Model(ModelConfig.from_dict(values))
        self.model.set_dtype(mx.bfloat16)
        nn.quantize(self.model, 64, 4, class_predicate=self.model.quant_predicate)
        self.cache = self.model.make_cache()
        for layer, cache in zip(self.model.layers, self.cache, strict=True):
            attention = layer.self_attn
            shape = (1, attention.n_kv_heads, context, attention.head_dim)
            cache.update_and_fetch(mx.zeros(shape, mx.bfloat16), mx.zeros(shape, mx.bfloat16))
            mx.eval(cache.state)
        self._canvas, self._vocabulary = canvas, text["vocab_size"]

    def count(self, pieces: Callable[..., Any]) -> dict[str, Any]:
        """What `pieces` launches and writes; see `graph.Count`."""
        names, weights = zip(*tree_flatten(self.model.parameters()), strict=True)
        canvas = mx.zeros((1, self._canvas), mx.int32)
        logits = mx.zeros((1, self._canvas, self._vocabulary))

        def run(canvas: mx.array, logits: mx.array, before: mx.array, *arrays: mx.array) -> Any:
            self.model.load_weights(list(zip(names, arrays, strict=True)))
            return pieces(self, canvas, logits, before)

        mx.eval(mx.random.state)  # its weights' random numbers are lazy; the draws follow them
        nodes = graph.trace(run, [canvas, logits, canvas, *weights])
        return vars(graph.count(nodes, logits.size))

    def logits(self, canvas: mx.array, previous: mx.array) -> mx.array:
        """A decoder pass with self-conditioning."""
        masks = self.model.diffusion_decoder_masks(canvas, self.cache, None)
        logits: mx.array = self.model.diffusion_decoder_logits(
            canvas, cache=self.cache, self_conditioning=previous, decoder_attention_mask=masks
        )
        return logits


def _step(traced: _Traced, canvas: mx.array, previous: mx.array, before: mx.array) -> Any:
    """Its entropy-bound sampler at temperature 1, which draws as the reference does.

    Its stop rule computes the entropy once more where the best tokens have not changed: left out.
    """
    logits = traced.logits(canvas, previous) / _TEMPERATURE
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    drawn = diffusion._diffusion_sample_canvas(logits, mx.int32, 1.0)
    entropy = diffusion._diffusion_token_entropy(logits)
    mask = diffusion._diffusion_entropy_transfer_mask(entropy, _BOUND)
    accepted = mx.where(mask, drawn, canvas)
    noise = diffusion._diffusion_initialize_canvas(1, canvas.shape[1], logits.shape[2], mx.int32)
    return logits, mx.where(mask, accepted, noise), mask, mx.all(best == before)


def _default_step(traced: _Traced, canvas: mx.array, previous: mx.array, before: mx.array) -> Any:
    """Its default: tokens above a probability are kept, and nothing is drawn but the noise."""
    logits = traced.logits(canvas, previous) / _TEMPERATURE
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    shown = before == canvas
    confidence = diffusion._diffusion_token_probability(logits, best)
    mask = diffusion._diffusion_confidence_transfer_mask(confidence, ~shown, _THRESHOLD)
    accepted = mx.where(mask, best, before)
    noise = diffusion._diffusion_initialize_canvas(1, canvas.shape[1], logits.shape[2], mx.int32)
    canvas = mx.where(shown | mask, accepted, noise)
    shown, draft = shown | mask, mx.where(mask, accepted, before)
    return logits, canvas, shown, draft, mx.all(shown), mx.all(best == before)


def _pass(traced: _Traced, canvas: mx.array, previous: mx.array, before: mx.array) -> mx.array:
    return traced.logits(canvas, previous)


def main() -> None:
    """Count every pattern."""
    context, canvas, text, patterns = map(json.loads, sys.argv[1:])
    counts = {}
    for name, kinds in patterns.items():
        traced = _Traced(text, kinds, context, canvas)
        pieces = {"pass": _pass, "step": _step, "default_step": _default_step}
        counts[name] = {piece: traced.count(function) for piece, function in pieces.items()}
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
