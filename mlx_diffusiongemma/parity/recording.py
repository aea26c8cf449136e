"""Record a model: run its passes and generations on given inputs, keep what a trace keeps.

    Inputs --> Subject, transformers or ours --> Observed --> rows, channels, top logits --> Trace

One code for both sides, so that they cannot differ in what they keep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mlx_diffusiongemma.parity.layout import PASSES, Pass, kept
from mlx_diffusiongemma.parity.suite import Inputs
from mlx_diffusiongemma.parity.trace import (
    Arrays,
    GenerationCase,
    Manifest,
    ModelFacts,
    PassCase,
    Producer,
    Sampling,
    Trace,
)

TOKENS = ("prompt", "canvas", "block", "second_canvas")
TEMPERATURE = 0.5  # of the logits that are fed back
_FORBIDDEN = -1e4  # a logit whose probability is 0 in every dtype


@dataclass(frozen=True, eq=False)
class Observed:
    """What one pass computed, for the rows that were asked for.

    Attributes:
        operations: (layer or None, operation) -> [rows, values], float32 but for "experts".
        logits: softcapped, float32 [rows, V]; of a denoise pass those of the whole canvas.
    """

    operations: Mapping[tuple[int | None, str], np.ndarray]
    logits: np.ndarray


@dataclass(frozen=True, eq=False)
class Generated:
    """A whole generation: the arrays of `layout`, by their last names."""

    arrays: Arrays


class Subject(Protocol):
    """A model that can be recorded. It remembers what it has read since `reset`."""

    facts: ModelFacts
    producer: Producer

    def reset(self) -> None:
        """Forget everything that was read."""
        ...

    def prefill(self, ids: np.ndarray, rows: np.ndarray) -> Observed:
        """Read int32 [S] causally and observe the rows."""
        ...

    def denoise(
        self, canvas: np.ndarray, previous: np.ndarray | None, rows: np.ndarray
    ) -> Observed:
        """One step over int32 [L], fed float32 [L, V] or nothing."""
        ...

    def generate(self, case: GenerationCase, prompt: np.ndarray, given: Arrays) -> Generated:
        """Answer, with the draws in `given` as long as they reach."""
        ...


def record(
    subject: Subject, inputs: Inputs, *, progress: Callable[[str], None] = lambda what: None
) -> Trace:
    """Run everything in `inputs`; `progress` is told what comes next.

    Where a pass computes numbers that are not finite, generations are left out: they could not end.
    """
    arrays: dict[str, np.ndarray] = {}
    for case in inputs.cases:
        progress(f"case {case.name}")
        arrays |= _record_case(subject, case, inputs)
    generations = []
    is_finite = all(np.isfinite(a).all() for a in arrays.values() if a.dtype == np.float32)
    for asked in inputs.generations if is_finite else ():
        progress(f"generation {asked.name}")
        start = f"generations/{asked.name}/"
        given = {n.removeprefix(start): a for n, a in inputs.arrays.items() if n.startswith(start)}
        found = subject.generate(asked, given["prompt"], given).arrays
        arrays |= {start + name: array for name, array in found.items()}
        generations.append(
            replace(
                asked,
                canvases=len(found["steps"]),
                steps=len(found["argmax"]),
                answer_tokens=len(found["answer"]),
            )
        )
    manifest = Manifest(
        model=subject.facts,
        producer=subject.producer,
        sampling=inputs.sampling,
        cases=inputs.cases,
        generations=tuple(generations),
    )
    return Trace(manifest, arrays)


def _record_case(subject: Subject, case: PassCase, inputs: Inputs) -> dict[str, np.ndarray]:
    start = f"passes/{case.name}/"
    given = {n.removeprefix(start): a for n, a in inputs.arrays.items() if n.startswith(start)}
    out: dict[str, np.ndarray] = {name: given[name] for name in TOKENS}
    feed: dict[str, np.ndarray] = {
        name: given[name] for name in ("feed_ids", "feed_logits") if name in given
    }
    vocab_size = subject.facts.architecture.vocab_size
    subject.reset()
    for each in PASSES:
        rows = kept(each.length(case, len(out["canvas"])), inputs.sampling.positions)
        ids = out[each.tokens]
        if each.is_prefill:
            observed = subject.prefill(ids, rows)
        else:
            previous = _dense(feed, vocab_size) if each.is_conditioned else None
            observed = subject.denoise(ids, previous, rows)
        out |= _kept(each, observed, inputs.sampling, given.get(f"{each.name}/logit_ids"))
        if not feed:
            feed = _feed(out, each, inputs.sampling)
    return {start + name: array for name, array in (out | feed).items()}


def _kept(
    each: Pass, observed: Observed, sampling: Sampling, ids: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The arrays of one pass; `ids` says whose logits to keep, None takes the largest."""
    out = {}
    operations = dict(observed.operations)
    for layer in {layer for layer, _ in operations if layer is not None}:
        _sort_experts(operations, layer)
    for (layer, operation), values in operations.items():
        place = "" if layer is None else f"layers/{layer}/"
        is_whole = operation in ("router_scores", "experts", "router_weights")
        channels = values.shape[-1] if is_whole else sampling.channels
        out[f"{each.name}/{place}{operation}"] = values[:, kept(values.shape[-1], channels)]
    logits = observed.logits
    ids = largest(logits, sampling.logits) if ids is None else ids
    out[f"{each.name}/logit_ids"] = ids
    out[f"{each.name}/logits"] = np.take_along_axis(logits, ids, axis=-1)
    out[f"{each.name}/logsumexp"] = log_sum_exp(logits)
    out[f"{each.name}/argmax"] = logits.argmax(-1).astype(np.int32)
    return out


def _sort_experts(operations: dict[tuple[int | None, str], np.ndarray], layer: int) -> None:
    """Experts ascending, and their weights with them: ties have no order."""
    order = np.argsort(operations[layer, "experts"], axis=-1)
    for operation in ("experts", "router_weights"):
        key = layer, operation
        operations[key] = np.take_along_axis(operations[key], order, axis=-1)
    operations[layer, "experts"] = operations[layer, "experts"].astype(np.int32)


def _feed(out: Arrays, each: Pass, sampling: Sampling) -> dict[str, np.ndarray]:
    """What the first denoise pass gives the next one: its largest logits, at a temperature."""
    if each.is_prefill:
        return {}
    logits = out[f"{each.name}/logits"] / np.float32(TEMPERATURE)
    count = min(sampling.feed, logits.shape[-1])
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    ids = np.take_along_axis(out[f"{each.name}/logit_ids"], best, axis=-1)
    return {"feed_ids": ids, "feed_logits": np.take_along_axis(logits, best, axis=-1)}


def _dense(feed: Arrays, vocab_size: int) -> np.ndarray:
    """The fed logits as float32 [L, V]; every other token is forbidden."""
    ids = feed["feed_ids"]
    dense = np.full((len(ids), vocab_size), _FORBIDDEN, np.float32)
    np.put_along_axis(dense, ids.astype(np.int64), feed["feed_logits"], axis=-1)
    return dense


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """int32 [rows, count]: tokens of the largest logits, best first; ties to the lower id."""
    count = min(count, logits.shape[-1])
    # Row by row, here and below: indices of a whole canvas would take half a gigabyte.
    some = np.stack([np.sort(np.argpartition(-row, count - 1)[:count]) for row in logits])
    values = np.take_along_axis(logits, some, axis=-1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(some, order, axis=-1).astype(np.int32)


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """float32 [rows], summed in float64."""
    top = logits.max(-1).astype(np.float64)
    sums = [
        np.exp(row.astype(np.float64) - high).sum() for row, high in zip(logits, top, strict=True)
    ]
    return (top + np.log(np.array(sums))).astype(np.float32)
