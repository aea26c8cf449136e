"""What a trace holds: passes, operations in the order they are computed, names and shapes.

    passes/CASE/{prompt,canvas,block,second_canvas,feed_ids,feed_logits}    inputs
    passes/CASE/PASS/OPERATION, passes/CASE/PASS/layers/N/OPERATION         [rows, channels]
    passes/CASE/PASS/{logit_ids,logits,logsumexp,argmax}                    [rows, top], [rows]
    generations/NAME/...                                                    draws and decisions

`expected_arrays` follows from the manifest alone: the recorder fills it, the reader checks files
against it, and its sum is the estimate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlx_diffusiongemma.parity.trace import (
    Architecture,
    GenerationCase,
    Manifest,
    PassCase,
    Sampling,
)


@dataclass(frozen=True)
class Pass:
    """One run through the layers.

    Attributes:
        tokens: which input it reads.
        is_prefill: causal, writes the cache; otherwise it denoises.
        is_conditioned: is fed the logits of the step before.
    """

    name: str
    tokens: str
    is_prefill: bool = False
    is_conditioned: bool = False

    def length(self, case: PassCase, canvas_length: int) -> int:
        """How many tokens it reads."""
        return case.prompt_tokens if self.tokens == "prompt" else canvas_length

    def operations(self, layers: int) -> Iterator[tuple[int | None, str]]:
        """(layer, operation) in the order in which they are computed; None is outside of layers."""
        yield None, EMBEDDING
        if self.is_conditioned:
            yield None, SOFT_EMBEDDING
        if not self.is_prefill:
            yield None, SELF_CONDITIONING
        for layer in range(layers):
            for operation in LAYER_OPERATIONS:
                yield layer, operation
        yield None, FINAL_NORM


# In the order in which a case runs them.
PASSES = (
    Pass("prompt", "prompt", is_prefill=True),
    Pass("denoise", "canvas"),
    Pass("conditioned", "canvas", is_conditioned=True),
    Pass("block", "block", is_prefill=True),
    Pass("second", "second_canvas", is_conditioned=True),
)

EMBEDDING, SOFT_EMBEDDING = "embedding", "soft_embedding"
SELF_CONDITIONING, FINAL_NORM = "self_conditioning", "final_norm"
# Queries and keys after norm and rotation, values after their norm; attention after its output
# projection; residual once that is normalised and added; scores before the softmax; the dense and
# the routed half before their norms; output with the layer's scalar.
LAYER_OPERATIONS = (
    *("queries", "keys", "values", "attention", "residual"),
    *("router_scores", "experts", "router_weights", "dense", "routed", "output"),
)
OPERATIONS = (EMBEDDING, SOFT_EMBEDDING, SELF_CONDITIONING, *LAYER_OPERATIONS, FINAL_NORM)
_WHOLE = ("router_scores", "experts", "router_weights")  # every channel is kept
INPUTS = ("prompt", "canvas", "block", "second_canvas", "feed_ids", "feed_logits")
LOGITS = ("logit_ids", "logits", "logsumexp", "argmax")
DRAWS = ("initial", "candidates", "renoise")


@dataclass(frozen=True)
class Spec:
    """Dtype and shape of one array."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


def name_of(case: str, pass_name: str, layer: int | None, operation: str) -> str:
    """The name of what one operation computed."""
    place = "" if layer is None else f"layers/{layer}/"
    return f"passes/{case}/{pass_name}/{place}{operation}"


def kept(length: int, most: int) -> np.ndarray:
    """At most `most` of `length` indices, spread evenly, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def expected_arrays(manifest: Manifest) -> dict[str, Spec]:
    """Every array of a trace with this manifest."""
    arrays: dict[str, Spec] = {}
    architecture, sampling = manifest.model.architecture, manifest.sampling
    for case in manifest.cases:
        arrays |= _case_arrays(case, architecture, sampling)
    for generation in manifest.generations:
        arrays |= _generation_arrays(generation, architecture.canvas_length)
    return arrays


def _case_arrays(case: PassCase, architecture: Architecture, sampling: Sampling) -> dict[str, Spec]:
    length = architecture.canvas_length
    fed = (length, min(sampling.feed, sampling.logits, architecture.vocab_size))
    top = min(sampling.logits, architecture.vocab_size)
    start = f"passes/{case.name}"
    arrays = {f"{start}/prompt": Spec("int32", (case.prompt_tokens,))}
    for name in ("canvas", "block", "second_canvas"):
        arrays[f"{start}/{name}"] = Spec("int32", (length,))
    arrays[f"{start}/feed_ids"] = Spec("int32", fed)
    arrays[f"{start}/feed_logits"] = Spec("float32", fed)
    for each in PASSES:
        tokens = each.length(case, length)
        rows = len(kept(tokens, sampling.positions))
        for layer, operation in each.operations(len(architecture.head_dims)):
            width = _width(operation, layer, architecture)
            channels = width if operation in _WHOLE else len(kept(width, sampling.channels))
            dtype = "int32" if operation == "experts" else "float32"
            arrays[name_of(case.name, each.name, layer, operation)] = Spec(dtype, (rows, channels))
        judged = rows if each.is_prefill else tokens
        arrays[f"{start}/{each.name}/logit_ids"] = Spec("int32", (judged, top))
        arrays[f"{start}/{each.name}/logits"] = Spec("float32", (judged, top))
        arrays[f"{start}/{each.name}/logsumexp"] = Spec("float32", (judged,))
        arrays[f"{start}/{each.name}/argmax"] = Spec("int32", (judged,))
    return arrays


def _width(operation: str, layer: int | None, architecture: Architecture) -> int:
    if layer is not None and operation in ("queries", "keys", "values"):
        is_query = operation == "queries"
        heads = (
            architecture.num_attention_heads if is_query else architecture.key_value_heads[layer]
        )
        return heads * architecture.head_dims[layer]
    if operation == "router_scores":
        return architecture.num_experts
    if operation in ("experts", "router_weights"):
        return architecture.top_k_experts
    return architecture.hidden_size


def _generation_arrays(case: GenerationCase, length: int) -> dict[str, Spec]:
    steps = (case.steps, length)
    specs = {
        "prompt": Spec("int32", (case.prompt_tokens,)),
        "initial": Spec("int32", (case.canvases, length)),
        "candidates": Spec("int32", steps),
        "renoise": Spec("int32", steps),
        "argmax": Spec("int32", steps),
        "accepted": Spec("bool", steps),
        "entropy": Spec("float32", steps),
        "steps": Spec("int32", (case.canvases,)),
        "converged": Spec("bool", (case.canvases,)),
        "answer": Spec("int32", (case.answer_tokens,)),
    }
    return {f"generations/{case.name}/{name}": spec for name, spec in specs.items()}
