"""The faults that the parity checks must notice, put into our model one at a time.

`MUTANTS[name](model, patch)` breaks a freshly loaded model, or a function through pytest's
monkeypatch. A name may have variants, "name: where": each must be noticed by itself.
"""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest

from mlx_diffusiongemma import generation, kernels
from mlx_diffusiongemma.kernels.reference import rotate
from mlx_diffusiongemma.model import DiffusionGemma, diffusion_gemma
from mlx_diffusiongemma.model.decoder_layer import DecoderLayer
from mlx_diffusiongemma.model.layers import rotary_frequencies
from mlx_diffusiongemma.model.self_conditioning import SelfConditioning
from mlx_diffusiongemma.passes import Predict

Mutate = Callable[[DiffusionGemma, pytest.MonkeyPatch], None]


def encoder_scalars_in_decoder(model, patch):
    encoder = model.model.encoder.language_model.layers
    for layer, own in zip(model.model.decoder.layers, encoder, strict=True):
        layer.layer_scalar = own.layer_scalar


def prefill_window_plus(change: int) -> Mutate:
    def mutate(model, patch):
        for layer in model.model.decoder.layers:
            if layer.self_attn._window is not None:
                layer.self_attn._window += change

    return mutate


def cached_window_plus(change: int) -> Mutate:
    def mutate(model, patch):
        make_cache = DiffusionGemma.make_cache

        def mutated(self, *arguments):
            cache = make_cache(self, *arguments)
            for layer in cache.layers:
                if layer.keep is not None:
                    layer.keep += change
            return cache

        patch.setattr(DiffusionGemma, "make_cache", mutated)

    return mutate


def both_windows_plus(change: int) -> Mutate:
    def mutate(model, patch):
        prefill_window_plus(change)(model, patch)
        cached_window_plus(change)(model, patch)

    return mutate


def no_softcap(model, patch):
    def head(self, hidden):
        return self.model.decoder.embed_tokens.as_linear(hidden).astype(mx.float32)

    patch.setattr(DiffusionGemma, "head", head)


def no_v_norm(model, patch):
    prepare_heads = kernels.prepare_heads

    def mutated(queries, keys, values, weights, offset, eps):
        heads = prepare_heads(queries, keys, values, weights, offset, eps)
        raw = mx.unflatten(keys if values is None else values, -1, (-1, heads.keys.shape[-1]))
        return heads._replace(values=raw.swapaxes(1, 2))

    patch.setattr(kernels, "prepare_heads", mutated)


def no_q_norm(model, patch):
    prepare_heads = kernels.prepare_heads

    def mutated(queries, keys, values, weights, offset, eps):
        heads = prepare_heads(queries, keys, values, weights, offset, eps)
        raw = mx.unflatten(queries, -1, (-1, heads.keys.shape[-1])).swapaxes(1, 2)
        return heads._replace(queries=rotate(raw, weights.frequencies, offset))

    patch.setattr(kernels, "prepare_heads", mutated)


def per_expert_scale_ignored(model, patch):
    for layer in model.model.decoder.layers:
        layer.router.per_expert_scale = mx.ones_like(layer.router.per_expert_scale)


def weights_not_renormalised(model, patch):
    route = kernels.route

    def mutated(scores, per_expert_scale, top_k):
        routing = route(scores, per_expert_scale, top_k)
        probs = mx.softmax(scores.astype(mx.float32), axis=-1)
        shares = mx.take_along_axis(probs, routing.experts, axis=-1)
        return routing._replace(weights=shares * per_expert_scale[routing.experts])

    patch.setattr(kernels, "route", mutated)


def router_fed_normalised_input(model, patch):
    add_attention = kernels.add_attention

    def mutated(residual, attended, weights, eps):
        inputs = add_attention(residual, attended, weights, eps)
        normed = mx.fast.rms_norm(inputs.dense, None, eps) * weights.router_scale
        return inputs._replace(router=normed * normed.shape[-1] ** -0.5)

    patch.setattr(kernels, "add_attention", mutated)


def experts_gate_and_up_swapped(model, patch):
    for layer in model.model.decoder.layers:
        gate, up = mx.split(layer.experts.gate_up_proj.weight, 2, axis=1)
        layer.experts.gate_up_proj.weight = mx.concatenate([up, gate], axis=1)


def dense_gate_and_up_swapped(model, patch):
    for layer in model.model.decoder.layers:
        layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


def self_conditioning_gate_and_up_swapped(model, patch):
    module = model.model.decoder.self_conditioning
    module.gate_proj, module.up_proj = module.up_proj, module.gate_proj


def rope_base_of_the_other_layer_type(model, patch):
    configs = model.config.layers
    bases = {config.is_sliding: config.rope_theta for config in configs}
    for layer, config in zip(model.model.decoder.layers, configs, strict=True):
        mutated = replace(config, rope_theta=bases[not config.is_sliding])
        layer.self_attn._frequencies = rotary_frequencies(mutated)


def soft_embedding_unscaled(model, patch):
    soft_embedding = diffusion_gemma.soft_embedding
    scale = model.config.hidden_size**0.5
    patch.setattr(
        diffusion_gemma,
        "soft_embedding",
        lambda *args: [part / scale for part in soft_embedding(*args)],
    )


def self_conditioning_dropped(model, patch):
    call = SelfConditioning.__call__
    patch.setattr(
        SelfConditioning, "__call__", lambda self, x, soft, *rest: call(self, x, [], *rest)
    )


def embedding_scale_missing(model, patch):
    def embed(self, tokens):
        return self.model.decoder.embed_tokens(tokens)

    condition = kernels.condition

    def unscaled(embedded, signal, scale, *rest):
        return condition(embedded, signal, mx.ones_like(scale), *rest)

    patch.setattr(DiffusionGemma, "_embed", embed)
    patch.setattr(kernels, "condition", unscaled)


def canvas_positions_off_by_one(model, patch):
    denoise = DecoderLayer.denoise

    def mutated(self, x, pieces, next_norm):
        moved = [piece._replace(offset=piece.offset + 1) for piece in pieces]
        return denoise(self, x, moved, next_norm)

    patch.setattr(DecoderLayer, "denoise", mutated)


def raw_logits_fed_back(model, patch):
    """The loop hands the model what it predicted, before the temperature."""
    denoising_loop = generation.denoising_loop

    def mutated(*args, **options):
        loop, answer, raw = denoising_loop(*args, **options), None, None
        while True:
            try:
                asked = loop.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(asked, Predict) and asked.belief is not None:
                asked = replace(asked, belief=raw)
            answer = yield asked
            raw = diffusion_gemma.believed(answer) if isinstance(asked, Predict) else raw

    patch.setattr(generation, "denoising_loop", mutated)


MUTANTS: dict[str, Mutate] = {
    "encoder scalars used in the decoder": encoder_scalars_in_decoder,
    "window + 1: everywhere": both_windows_plus(1),
    "window + 1: prefill": prefill_window_plus(1),
    "window + 1: denoise": cached_window_plus(1),
    "window - 1: everywhere": both_windows_plus(-1),
    "window - 1: prefill": prefill_window_plus(-1),
    "window - 1: denoise": cached_window_plus(-1),
    "no softcap": no_softcap,
    "no v_norm": no_v_norm,
    "no q_norm": no_q_norm,
    "per_expert_scale ignored": per_expert_scale_ignored,
    "top-k weights not renormalised": weights_not_renormalised,
    "router fed the normalised input": router_fed_normalised_input,
    "gate and up swapped: experts": experts_gate_and_up_swapped,
    "gate and up swapped: dense": dense_gate_and_up_swapped,
    "gate and up swapped: self-conditioning": self_conditioning_gate_and_up_swapped,
    "rope base of the other layer type": rope_base_of_the_other_layer_type,
    "soft embedding unscaled": soft_embedding_unscaled,
    "self-conditioning dropped": self_conditioning_dropped,
    "embedding scale missing": embedding_scale_missing,
    "positions of the canvas off by one": canvas_positions_off_by_one,
    "raw logits fed back": raw_logits_fed_back,
}
