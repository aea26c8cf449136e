"""What the reference's two passes compute for one prompt, layer by layer.

A recording is a flat dict of arrays, the form that fixtures store and the tests compare:

    prompt [B, S], block [B, L], canvas [B, L], second_canvas [B, L]    token ids, the inputs
    prompt/...      prefill of the prompt
    denoise/...     first decoder pass over `canvas`
    conditioned/... second one, fed the first one's logits / TEMPERATURE
    block/...       prefill of `block`, the committed canvas
    second/...      denoise of `second_canvas`, fed denoise/logits / TEMPERATURE

Below each: logits, softcapped, for prefill those of its last token. For prompt, denoise and block
also hidden/N [B, T, H] after layer N and experts/N, weights/N [B, T, K]; for prompt and block
keys/N, values/N [B, heads, T, D] as the cache keeps them. Of every T only the last positions are
kept, to keep the files small: KEPT_HIDDEN and KEPT_KEYS.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache

KEPT_HIDDEN = 6
KEPT_KEYS = 24
TEMPERATURE = 0.25
SMALLEST_GAP = 2e-5  # of probability, between a chosen expert and a rejected one: 20 x the noise

INPUTS = ("prompt", "block", "canvas", "second_canvas")

Recording = dict[str, np.ndarray]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> DiffusionGemmaForBlockDiffusion:
    """The reference model of a checkpoint, for inference, in `dtype`."""
    return DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()


def draw_inputs(
    model: DiffusionGemmaForBlockDiffusion, length: int, *, batch: int = 1, seed: int
) -> Recording:
    """Random token ids for one case; never an image's, which would need pixels."""
    config = model.config
    rng = np.random.default_rng(seed)
    images = {config.image_token_id, config.boi_token_id, config.eoi_token_id}
    allowed = np.array([i for i in range(config.text_config.vocab_size) if i not in images])
    lengths = {"prompt": length} | dict.fromkeys(
        ("block", "canvas", "second_canvas"), config.canvas_length
    )
    return {
        name: rng.choice(allowed, size=(batch, size)).astype(np.int32)
        for name, size in lengths.items()
    }


@torch.no_grad()
def record(
    model: DiffusionGemmaForBlockDiffusion,
    inputs: Recording,
    *,
    previous: np.ndarray | None = None,
) -> Recording:
    """Run the prompt, two denoising steps, a committed block and one more step.

    `previous` are the logits to feed back, before TEMPERATURE; the first step's own by default.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    out = dict(inputs)
    _prefill(model, cache, inputs["prompt"], "prompt", out)
    with _traced(model.model.decoder.layers, "denoise", out):
        _denoise(model, cache, inputs["canvas"], None, "denoise", out)
    previous = (out["denoise/logits"] if previous is None else previous) / np.float32(TEMPERATURE)
    _denoise(model, cache, inputs["canvas"], previous, "conditioned", out)
    _prefill(model, cache, inputs["block"], "block", out)
    _denoise(model, cache, inputs["second_canvas"], previous, "second", out)
    return out


def _prefill(model, cache: DynamicCache, ids: np.ndarray, name: str, out: Recording) -> None:
    encoder = model.model.encoder.language_model
    with _traced(encoder.layers, name, out):
        hidden = encoder(input_ids=torch.from_numpy(ids).long(), cache=cache).last_hidden_state
    logits = model.lm_head(hidden[:, -1:]).float()
    cap = model.final_logit_softcapping
    out[f"{name}/logits"] = _array(torch.tanh(logits / cap) * cap)
    for index, layer in enumerate(cache.layers):
        out[f"{name}/keys/{index}"] = _array(layer.keys[:, :, -KEPT_KEYS:])
        out[f"{name}/values/{index}"] = _array(layer.values[:, :, -KEPT_KEYS:])


def _denoise(model, cache, canvas: np.ndarray, previous, name: str, out: Recording) -> None:
    fed_back = None if previous is None else torch.from_numpy(previous).to(model.dtype)
    result = model(
        decoder_input_ids=torch.from_numpy(canvas).long(),
        cache=cache,
        self_conditioning_logits=fed_back,
    )
    out[f"{name}/logits"] = _array(result.logits)


@contextmanager
def _traced(layers, name: str, out: Recording) -> Iterator[None]:
    """Note what each layer and its router return while the context is open."""
    handles = []
    for index, layer in enumerate(layers):

        def keep_hidden(_module, _args, output, index=index):
            out[f"{name}/hidden/{index}"] = _array(output[:, -KEPT_HIDDEN:])

        def keep_routes(_module, args, output, index=index):
            _, weights, experts = output
            out[f"{name}/experts/{index}"] = experts.numpy().astype(np.int32)
            out[f"{name}/weights/{index}"] = _array(weights)

        handles.append(layer.register_forward_hook(keep_hidden))
        handles.append(layer.router.register_forward_hook(keep_routes))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for index in range(len(layers)):
        batch = out[f"{name}/hidden/{index}"].shape[0]
        for kind in ("experts", "weights"):
            routes = out[f"{name}/{kind}/{index}"]
            out[f"{name}/{kind}/{index}"] = routes.reshape(batch, -1, routes.shape[-1])[
                :, -KEPT_HIDDEN:
            ]


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A copy, because some modules change their output in place afterwards."""
    return tensor.detach().to(torch.float32).numpy().copy()


def record_safely(
    model: DiffusionGemmaForBlockDiffusion, length: int, *, batch: int = 1, first_seed: int
) -> tuple[Recording, int]:
    """Record random inputs, with the first seed that leaves no choice of experts near a tie."""
    for seed in range(first_seed, first_seed + 100):
        inputs = draw_inputs(model, length, batch=batch, seed=seed)
        recording, gap = _record_with_gap(model, inputs)
        if gap > SMALLEST_GAP:
            return recording, seed
    raise ValueError(f"seeds {first_seed} to {seed} all leave two experts nearly equal")


def _record_with_gap(
    model: DiffusionGemmaForBlockDiffusion, inputs: Recording
) -> tuple[Recording, float]:
    """`record`, and the smallest gap between the last chosen and the first rejected expert."""
    gaps: list[float] = []

    def note(router, _args, output):
        ordered = output[0].sort(dim=-1, descending=True).values
        count = router.config.top_k_experts
        gaps.append(float((ordered[:, count - 1] - ordered[:, count]).min()))

    encoder = model.model.encoder.language_model.layers
    routers = [layer.router for layer in (*model.model.decoder.layers, *encoder)]
    handles = [router.register_forward_hook(note) for router in routers]
    recording = record(model, inputs)
    for handle in handles:
        handle.remove()
    return recording, min(gaps)
