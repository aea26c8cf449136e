"""The faults that a test suite must notice, put into the reference to see what they change.

Each entry breaks a freshly loaded model in place. The fixtures are only worth something if every
one of them moves the recorded numbers; `sensitivity` measures by how much.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import DiffusionGemmaForBlockDiffusion

from tools.reference import passes
from tools.reference.passes import Recording

Model = DiffusionGemmaForBlockDiffusion


def _layers(model: Model) -> list[torch.nn.Module]:
    return [*model.model.decoder.layers, *model.model.encoder.language_model.layers]


def _encoder_scalars_in_decoder(model: Model) -> None:
    encoder = model.model.encoder.language_model.layers
    for own, other in zip(model.model.decoder.layers, encoder, strict=True):
        own.layer_scalar.copy_(other.layer_scalar)


def _window_plus(change: int) -> Callable[[Model], None]:
    def mutate(model: Model) -> None:
        model.config.text_config.sliding_window += change

    return mutate


def _no_softcap(model: Model) -> None:
    model.final_logit_softcapping = 1e9


def _without(norm: str) -> Callable[[Model], None]:
    def mutate(model: Model) -> None:
        for layer in _layers(model):
            setattr(layer.self_attn, norm, torch.nn.Identity())

    return mutate


def _per_expert_scale_ignored(model: Model) -> None:
    for layer in model.model.decoder.layers:
        layer.router.per_expert_scale.fill_(1.0)


def _weights_not_renormalised(model: Model) -> None:
    def undo(router, _args, output):
        probabilities, _, experts = output
        weights = probabilities.gather(-1, experts) * router.per_expert_scale[experts]
        return probabilities, weights, experts

    for layer in _layers(model):
        layer.router.register_forward_hook(undo)


def _router_fed_normalised_input(model: Model) -> None:
    for layer in _layers(model):
        norm = layer.pre_feedforward_layernorm_2
        layer.router.register_forward_pre_hook(lambda _m, args, norm=norm: (norm(args[0]),))


def _gate_and_up_swapped(model: Model) -> None:
    for layer in model.model.decoder.layers:
        weight = layer.experts.gate_up_proj
        weight.copy_(torch.cat(weight.chunk(2, dim=1)[::-1], dim=1))


def _rope_base_of_the_other_layer_type(model: Model) -> None:
    parameters = model.config.text_config.rope_parameters
    bases = {kind: values["rope_theta"] for kind, values in parameters.items()}
    sliding, full = bases["sliding_attention"], bases["full_attention"]
    exponent = math.log(full) / math.log(sliding)
    for stack in (model.model.decoder, model.model.encoder.language_model):
        stack.rotary_emb.sliding_attention_inv_freq.pow_(exponent)
        stack.rotary_emb.full_attention_inv_freq.pow_(1 / exponent)


def _soft_embedding_unscaled(model: Model) -> None:
    scale = model.config.text_config.hidden_size**0.5
    model.model.decoder.self_conditioning.register_forward_pre_hook(
        lambda _module, args: (args[0], args[1] / scale)
    )


def _self_conditioning_dropped(model: Model) -> None:
    model.model.decoder.self_conditioning.register_forward_pre_hook(
        lambda _module, args: (args[0], args[1] * 0)
    )


def _embedding_scale_missing(model: Model) -> None:
    model.model.decoder.embed_tokens.embed_scale.fill_(1.0)
    model.model.encoder.language_model.embed_tokens.embed_scale.fill_(1.0)


def _canvas_positions_off_by_one(model: Model) -> None:
    def shift(_module, args, kwargs):
        start = kwargs["cache"].get_seq_length() + 1
        length = kwargs["decoder_input_ids"].shape[1]
        kwargs["decoder_position_ids"] = torch.arange(start, start + length)[None]
        return args, kwargs

    model.model.decoder.register_forward_pre_hook(shift, with_kwargs=True)


def _raw_logits_fed_back(model: Model) -> None:
    def undo(_module, args, kwargs):
        logits = kwargs.get("self_conditioning_logits")
        if logits is not None:
            kwargs["self_conditioning_logits"] = logits * passes.TEMPERATURE
        return args, kwargs

    model.model.decoder.register_forward_pre_hook(undo, with_kwargs=True)


MUTANTS: dict[str, Callable[[Model], None]] = {
    "encoder_scalars_in_decoder": _encoder_scalars_in_decoder,
    "window_plus_one": _window_plus(1),
    "window_minus_one": _window_plus(-1),
    "no_softcap": _no_softcap,
    "no_v_norm": _without("v_norm"),
    "no_q_norm": _without("q_norm"),
    "per_expert_scale_ignored": _per_expert_scale_ignored,
    "weights_not_renormalised": _weights_not_renormalised,
    "router_fed_normalised_input": _router_fed_normalised_input,
    "gate_and_up_swapped": _gate_and_up_swapped,
    "rope_base_of_the_other_layer_type": _rope_base_of_the_other_layer_type,
    "soft_embedding_unscaled": _soft_embedding_unscaled,
    "self_conditioning_dropped": _self_conditioning_dropped,
    "embedding_scale_missing": _embedding_scale_missing,
    "canvas_positions_off_by_one": _canvas_positions_off_by_one,
    "raw_logits_fed_back": _raw_logits_fed_back,
}


@torch.no_grad()
def sensitivity(folder: Path, recordings: list[Recording]) -> dict[str, float]:
    """Largest change of any recorded logit, or router weight, under each mutant."""
    changes = {}
    for name, mutate in MUTANTS.items():
        model = passes.load(folder)
        mutate(model)
        changes[name] = max(_change(model, recording) for recording in recordings)
    return changes


def _change(model: Model, recording: Recording) -> float:
    inputs = {name: recording[name] for name in passes.INPUTS}
    previous = recording["denoise/logits"]
    mutated = passes.record(model, inputs, previous=previous)
    watched = [name for name in recording if "/logits" in name or "/weights/" in name]
    return max(float(np.abs(mutated[name] - recording[name]).max()) for name in watched)
