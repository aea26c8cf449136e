"""The ledger: launches and bytes of one denoising step at the released model's sizes.

    models of few layers, lazy --> graph.trace, graph.count --> a layer, and what is outside of them

A step is one in the middle of a canvas: with self-conditioning, a step before it to compare with,
and the reference's sampler. No weight is ever made: a step of a model of 15 GB is counted in a
second, on any machine, as a Metal device would run it. A layer is what a model with one more of it
launches more.
"""

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mlx_diffusiongemma.bench import graph
from mlx_diffusiongemma.bench.graph import Count
from mlx_diffusiongemma.config import LayerConfig, ModelConfig
from mlx_diffusiongemma.denoising import advance
from mlx_diffusiongemma.draws import SeededDraws
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.kernels import Belief, Digest, Logits, dispatch
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.model.cache import KVCache
from mlx_diffusiongemma.model.sparse_conditioning import Digester, table_of
from mlx_diffusiongemma.options import SamplerSettings
from mlx_diffusiongemma.recipes import Recipe, find_recipe
from mlx_diffusiongemma.released import released_config, released_values
from mlx_diffusiongemma.stopping import Shown

CONTEXT = 600  # tokens before the canvas
RECIPE = "mixed-4-8"
SLIDING, FULL = "sliding", "full"
_PATTERNS = {"": [SLIDING, FULL], SLIDING: [SLIDING, SLIDING, FULL], FULL: [SLIDING, FULL, FULL]}


@dataclass(frozen=True)
class Ledger:
    """Counts of one denoising step.

    Attributes:
        layers: kind of layer -> one such layer.
        model: what of `model.denoise` is outside of the layers.
        sampler: everything between its logits and the next canvas, and the stop rule.
        step: all of it, with the released number of layers.
    """

    layers: Mapping[str, Count]
    model: Count
    sampler: Count
    step: Count

    @property
    def outside(self) -> Count:
        """Everything outside of the layers."""
        return _combined(self.model, self.sampler)


def ledger_of(
    count_pass: Callable[[Sequence[str]], Count],
    count_step: Callable[[Sequence[str]], Count],
    kinds: Sequence[str],
) -> Ledger:
    """Split counts of models with few layers; both functions take the kinds of their layers.

    Args:
        count_pass: counts `denoise` alone.
        count_step: counts `denoise` and the sampler.
        kinds: the layers of the whole model.
    """
    passes = {name: count_pass(pattern) for name, pattern in _PATTERNS.items()}
    layers = {kind: _combined(passes[kind], passes[""], sign=-1) for kind in (SLIDING, FULL)}
    both = _combined(layers[SLIDING], layers[FULL])
    sampler = _combined(count_step(_PATTERNS[""]), passes[""], sign=-1)
    return Ledger(layers, _combined(passes[""], both, sign=-1), sampler, count_step(kinds))


def _combined(one: Count, other: Count, sign: int = 1) -> Count:
    """Sums, or differences, kind by kind; kinds that nothing is left of are left out."""

    combined = Count()
    for part in fields(Count):
        a, b = getattr(one, part.name), getattr(other, part.name)
        values = {kind: a[kind] + sign * b[kind] for kind in {**a, **b}}
        getattr(combined, part.name).update({k: value for k, value in values.items() if value})
    return combined


def count_ours(
    context: int = CONTEXT, recipe: str = RECIPE, *, missed: int | None = None
) -> Ledger:
    """The ledger of this package, with its kernels; ConfigError for an unknown recipe.

    With `missed`, fast self-conditioning, whose certificate so many positions miss.
    """
    config, packing = released_config(), find_recipe(recipe)
    count = partial(_count, config, packing, context, missed)
    return ledger_of(partial(count, _pass), partial(count, _step), _kinds(config))


def count_peer(python: str, context: int = CONTEXT) -> dict[str, Ledger]:
    """The ledgers of mlx-vlm, counted by an interpreter that has it: sampler -> ledger.

    ConfigError when it cannot be run.
    """
    config = released_config()
    patterns = {**_PATTERNS, "all": _kinds(config)}
    arguments = context, config.canvas_length, released_values()["text_config"], patterns
    command = [python, str(Path(__file__).with_name("ledger_mlx_vlm.py"))]
    done = None
    with contextlib.suppress(OSError):
        done = subprocess.run(
            [*command, *map(json.dumps, arguments)], capture_output=True, text=True, check=False
        )
    if done is None or done.returncode:
        why = "it does not start" if done is None else done.stderr.strip().splitlines()[-1]
        raise ConfigError(
            f"`{python}` cannot count mlx-vlm: {why}",
            hint="--peer is the Python of an environment with mlx-vlm",
        )
    counts = json.loads(done.stdout.splitlines()[-1])

    def counted(piece: str, kinds: Sequence[str]) -> Count:
        name = next(name for name, pattern in patterns.items() if pattern == kinds)
        return Count(**{part: Counter(each) for part, each in counts[name][piece].items()})

    return {
        sampler: ledger_of(partial(counted, "pass"), partial(counted, piece), patterns["all"])
        for sampler, piece in (("entropy-bound", "step"), ("its default", "default_step"))
    }


def report(ledger: Ledger) -> dict[str, Any]:
    """All of it, for JSON: megabytes are of 10^6 bytes."""
    parts = {**ledger.layers, "outside": ledger.outside, "model": ledger.model}
    return {
        name: {
            "launches": count.launches.total(),
            "megabytes": count.nbytes.total() / 1e6,
            "large_arrays": count.large.total(),
            "hidden_launches": count.hidden.total(),
            "kinds": {kind: [n, count.nbytes[kind]] for kind, n in count.launches.items()},
        }
        for name, count in {**parts, "sampler": ledger.sampler, "step": ledger.step}.items()
    }


def as_json(about: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Reports as text, a line for each part; `about` says what was counted."""
    everything = {"about": about, **reports}
    programs = [
        f"{json.dumps(program)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items())
        + "\n}"
        for program, parts in everything.items()
    ]
    return "{\n" + ",\n".join(programs) + "\n}\n"


def table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each part of each program's report."""
    lines = [f"{'':14}{'launches':>9}{'hidden':>8}{'MB written':>12}{'large arrays':>14}"]
    for program, parts in reports.items():
        lines.append(program)
        for name, part in parts.items():
            numbers = part["launches"], part["hidden_launches"], part["megabytes"]
            lines.append(
                "  {:12}{:9}{:8}{:12.1f}{:14}".format(name, *numbers, part["large_arrays"])
            )
    return lines


def _kinds(config: ModelConfig) -> list[str]:
    return [SLIDING if layer.is_sliding else FULL for layer in config.layers]


def _count(
    config: ModelConfig,
    recipe: Recipe,
    context: int,
    missed: int | None,
    pieces: Callable,
    kinds: Sequence[str],
) -> Count:
    layer_of = {SLIDING if layer.is_sliding else FULL: layer for layer in config.layers}
    small = replace(config, layers=tuple(layer_of[kind] for kind in kinds))
    model = lazy_model(small, recipe)
    cache = model.make_cache()
    cache.expect(context + config.canvas_length)
    for stored, layer in zip(cache.layers, small.layers, strict=True):
        stored.append(*_empty_heads(layer, context))
    cache.offset = context
    mx.eval(cache.arrays)
    names, weights = zip(*tree_flatten(model.parameters()), strict=True)
    canvas = mx.zeros((1, config.canvas_length), mx.int32)
    raw = mx.zeros((*canvas.shape, config.vocab_size), model.compute_dtype)

    def run(canvas: mx.array, raw: mx.array, *arrays: mx.array) -> Any:
        model.load_weights(list(zip(names, arrays[3:], strict=True)))
        belief = Belief(model_logits(raw), arrays[0], digest)
        table = table_of(model.model.decoder.embed_tokens)
        digester = None if digest is None else Digester(table, norms, model.compute_dtype)
        shown = Shown(canvas, arrays[1], arrays[2])
        return pieces(model, cache, canvas, belief, shown, digester)

    def model_logits(raw: mx.array) -> Logits:
        return Logits(raw, config.final_logit_softcapping, SamplerSettings().t_max)

    numbers = mx.zeros(canvas.shape)
    soft = mx.zeros((*canvas.shape, config.hidden_size), model.compute_dtype)
    digest = None if missed is None else Digest(soft, numbers, numbers, tuple(range(missed)))
    norms = mx.zeros((config.vocab_size,))
    mx.eval(soft, numbers, norms)
    with dispatch.as_on_metal():
        nodes = graph.trace(run, [canvas, raw, numbers, numbers > 0, numbers, *weights])
    return graph.count(nodes, large=raw.size)


def _pass(
    model: DiffusionGemma,
    cache: KVCache,
    canvas: mx.array,
    belief: Belief,
    before: Shown,
    digester: Digester | None,
) -> mx.array:
    return model.predict(canvas, cache, belief).raw


def _step(
    model: DiffusionGemma,
    cache: KVCache,
    canvas: mx.array,
    belief: Belief,
    before: Shown,
    digester: Digester | None,
) -> tuple[mx.array, ...]:
    settings, draws = SamplerSettings(), SeededDraws(0)
    logits = model.predict(canvas, cache, belief).at(settings.t_max)
    vocab_size = model.config.vocab_size
    taken = advance(logits, canvas, before, draws, settings, vocab_size, digest=digester)
    return (*taken.small_arrays(), taken.belief.logits.raw)


def lazy_model(config: ModelConfig, recipe: Recipe) -> DiffusionGemma:
    """A model packed by `recipe` of which nothing has been computed."""
    model = DiffusionGemma(config)
    model.set_dtype(getattr(mx, recipe.dtype))

    def packing(path: str, module: nn.Module) -> bool | dict[str, Any]:
        how = recipe.for_module(path)
        return how is not None and {
            "group_size": how.group_size,
            "bits": how.bits,
            "mode": how.mode,
        }

    nn.quantize(model, class_predicate=packing)
    return model


def _empty_heads(layer: LayerConfig, tokens: int) -> tuple[mx.array, mx.array]:
    shape = (1, layer.num_key_value_heads, tokens, layer.head_dim)
    return mx.zeros(shape, mx.bfloat16), mx.zeros(shape, mx.bfloat16)
