"""transformers' model as the subject of a recording: the only file that needs torch.

Import it where it is needed. Modules are listened to with forward hooks; queries and keys after
their rotation are no module's output, so that function is listened to as well.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache
from transformers.models.diffusion_gemma import generation_diffusion_gemma as generation
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modeling
from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
    DiffusionGemmaForBlockDiffusion,
)

from mlx_diffusiongemma.config import read_config
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.parity.facts import model_facts
from mlx_diffusiongemma.parity.given_draws import GivenDraws
from mlx_diffusiongemma.parity.recording import Generated, Observed
from mlx_diffusiongemma.parity.trace import Arrays, GenerationCase, ModelFacts, Producer

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# What its modules call the KV cache: earlier versions of transformers have the second name.
_NAMES = signature(DiffusionGemmaForBlockDiffusion.forward).parameters
CACHE = "cache" if "cache" in _NAMES else "past_key_values"
_CLASSES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
Notes = dict[tuple[int | None, str], np.ndarray]


class Reference:
    """The reference's model, on one device, in one dtype."""

    def __init__(self, model: DiffusionGemmaForBlockDiffusion, facts: ModelFacts):
        self._model = model
        self._device = model.device
        self.facts = facts
        on_gpu = self._device.type == "cuda"
        name = str(model.dtype).removeprefix("torch.")
        self.producer = Producer(
            backend="transformers",
            device=f"cuda {torch.cuda.get_device_name()}" if on_gpu else self._device.type,
            dtype=name,
            precision=_CLASSES[name],
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )
        self.reset()

    @classmethod
    def open(
        cls, folder: Path, name: str, *, dtype: str | None = None, device: str | None = None
    ) -> "Reference":
        """Load the checkpoint in `folder`; CUDA where there is one, in the checkpoint's dtype.

        On the CPU the dtype is float32 unless another is asked for.
        """
        config = read_config(folder)
        if config.quantization.default is not None:
            raise ConfigError(
                "transformers does not read MLX's quantised checkpoints",
                hint="record the released one, or use `--backend mlx`",
            )
        has_gpu = torch.cuda.is_available()
        if device == "cuda" and not has_gpu:
            raise ConfigError("device is 'cuda', and torch finds none here", hint="use cpu")
        device = device or ("cuda" if has_gpu else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else config.dtype)
        model = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder, dtype=_DTYPES[dtype], experts_implementation="eager", local_files_only=True
        )
        return cls(model.eval().to(device), model_facts(folder, name))

    def reset(self) -> None:
        """See `Subject`."""
        self._cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))

    @torch.no_grad()
    def prefill(self, ids: np.ndarray, rows: np.ndarray) -> Observed:
        """See `Subject`."""
        encoder = self._model.model.encoder.language_model
        with _observing(encoder, rows) as notes:
            hidden = encoder(input_ids=self._tokens(ids), **self._with_cache()).last_hidden_state
        chosen = hidden[:, torch.from_numpy(rows).to(self._device)]
        cap = self._model.final_logit_softcapping
        logits = torch.tanh(self._model.lm_head(chosen).float() / cap) * cap
        return Observed(notes, _array(logits[0]))

    @torch.no_grad()
    def denoise(
        self, canvas: np.ndarray, previous: np.ndarray | None, rows: np.ndarray
    ) -> Observed:
        """See `Subject`."""
        fed = None
        if previous is not None:
            fed = torch.from_numpy(previous[None]).to(self._device, self._model.dtype)
        with _observing(self._model.model.decoder, rows) as notes:
            result = self._model(
                decoder_input_ids=self._tokens(canvas),
                self_conditioning_logits=fed,
                **self._with_cache(),
            )
        if fed is None:
            notes.pop((None, "soft_embedding"))  # zeros, which nobody fed
        return Observed(notes, _array(result.logits[0]))

    @torch.no_grad()
    def generate(self, case: GenerationCase, prompt: np.ndarray, given: Arrays) -> Generated:
        """See `Subject`: the reference's own `generate`, with every draw and decision noted."""
        settings, model = case.settings, self._model
        bound = generation.EntropyBoundSamplerConfig(settings.entropy_bound)
        text = model.config.text_config
        steps = settings.max_denoising_steps
        sampler = _Sampler(bound, model.config.canvas_length, text.vocab_size, steps, given=given)
        stopping = _Stopping(settings.stability_threshold, settings.confidence_threshold)
        model._prepare_sampler = lambda _config: sampler
        model._prepare_diffusion_stopping_criteria = lambda _config: stopping
        torch.manual_seed(0)
        output = model.generate(
            self._tokens(prompt),
            generation_config=None,
            max_new_tokens=case.max_tokens,
            max_denoising_steps=steps,
            sampler_config=bound,
            t_min=settings.t_min,
            t_max=settings.t_max,
            stability_threshold=settings.stability_threshold,
            confidence_threshold=settings.confidence_threshold,
            eos_token_id=list(case.eos_token_ids) or None,
            pad_token_id=0,
            cache_implementation=None,
            disable_compile=True,
        )
        counts = np.array(sampler.steps, np.int32)
        answer = _array(output.sequences[0, len(prompt) :])[: case.max_tokens]
        ended = np.isin(answer, case.eos_token_ids)
        notes = {name: _array(torch.cat(values)) for name, values in sampler.notes.items()}
        return Generated(
            {
                "prompt": prompt,
                **{name: _stored(values) for name, values in notes.items()},
                "steps": counts,
                "converged": np.array(stopping.verdicts)[np.cumsum(counts) - 1],
                "answer": _stored(answer[: int(ended.argmax())] if ended.any() else answer),
            }
        )

    def _with_cache(self) -> dict[str, DynamicCache]:
        return {CACHE: self._cache}

    def _tokens(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(ids[None].astype(np.int64)).to(self._device)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A copy on this side, because some modules change their output in place afterwards."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy().copy()


def _stored(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32) if values.dtype == np.int64 else values


@contextmanager
def _observing(stack: torch.nn.Module, rows: np.ndarray) -> Iterator[Notes]:
    """Note what the layers of the encoder or the decoder compute for one row of tokens."""
    notes: Notes = {}
    chosen = torch.from_numpy(rows).to(next(stack.parameters()).device)

    def keep(layer: int | None, operation: str, values: torch.Tensor) -> None:
        values = values[0] if values.ndim > 2 else values  # a batch of one, or rows already
        notes[layer, operation] = _array(values[chosen].flatten(1))

    handles = [*_outer_hooks(stack, keep)]
    for index, layer in enumerate(stack.layers):
        handles += _layer_hooks(index, layer, keep)
    rotate, calls = modeling.apply_rotary_pos_emb, 0

    def overheard(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        rotated = rotate(*arguments, **options)
        keep(calls // 2, ("queries", "keys")[calls % 2], rotated)
        calls += 1
        return rotated

    modeling.apply_rotary_pos_emb = overheard
    try:
        yield notes
    finally:
        modeling.apply_rotary_pos_emb = rotate
        for handle in handles:
            handle.remove()


Keep = Callable[[int | None, str, torch.Tensor], None]


def _outer_hooks(stack: torch.nn.Module, keep: Keep) -> Iterator[Any]:
    def embedded(_module: Any, _arguments: Any, output: torch.Tensor) -> None:
        keep(None, "embedding", output)

    def conditioned(_module: Any, arguments: Any, output: torch.Tensor) -> None:
        keep(None, "soft_embedding", arguments[1])
        keep(None, "self_conditioning", output)

    def normed(_module: Any, _arguments: Any, output: torch.Tensor) -> None:
        keep(None, "final_norm", output)

    yield stack.embed_tokens.register_forward_hook(embedded)
    yield stack.norm.register_forward_hook(normed)
    for name, module in stack.named_children():
        if name == "self_conditioning":
            yield module.register_forward_hook(conditioned)


def _layer_hooks(index: int, layer: torch.nn.Module, keep: Keep) -> list[Any]:
    def note(operation: str, pick: Callable[[Any], torch.Tensor]) -> Callable[..., None]:
        return lambda _module, _arguments, output: keep(index, operation, pick(output))

    def routed(_module: Any, arguments: Any, output: Any) -> None:
        keep(index, "residual", arguments[0])
        keep(index, "router_weights", output[1])
        keep(index, "experts", output[2])

    def whole(output: Any) -> torch.Tensor:
        return output

    return [
        layer.self_attn.v_norm.register_forward_hook(note("values", whole)),
        layer.self_attn.register_forward_hook(note("attention", lambda output: output[0])),
        layer.router.proj.register_forward_hook(note("router_scores", whole)),
        layer.router.register_forward_hook(routed),
        layer.mlp.register_forward_hook(note("dense", whole)),
        layer.experts.register_forward_hook(note("routed", whole)),
        layer.register_forward_hook(note("output", whole)),
    ]


class _Sampler(generation.EntropyBoundSampler):
    """The reference's sampler, which notes its draws, or takes those of an earlier recording."""

    def __init__(self, *arguments: Any, given: Arrays):
        super().__init__(*arguments)
        self._given = GivenDraws(given)
        names = ("initial", "candidates", "renoise", "argmax", "accepted", "entropy")
        self.notes: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        self.steps: list[int] = []

    def initialize_canvas(self, batch_size: int, device: torch.device) -> torch.Tensor:
        self._given.next_canvas()
        self.steps.append(0)
        return self._placed("initial", super().initialize_canvas(batch_size, device))

    def accept_canvas(
        self, current: torch.Tensor, drawn: torch.Tensor, logits: torch.Tensor, cur_step: Any
    ) -> torch.Tensor:
        self._given.next_step()
        self.steps[-1] += 1
        drawn = self._placed("candidates", drawn)
        accepted = super().accept_canvas(current, drawn, logits, cur_step)
        self.notes["accepted"].append(self.accepted_token_mask)
        self.notes["argmax"].append(logits.argmax(-1))
        distribution = torch.distributions.Categorical(logits=logits)
        self.notes["entropy"].append(distribution.entropy().float())
        return accepted

    def renoise_canvas(self, accepted: torch.Tensor, cur_step: Any) -> torch.Tensor:
        drawn = super().initialize_canvas(len(accepted), accepted.device)
        return torch.where(self.accepted_token_mask, accepted, self._placed("renoise", drawn))

    def _placed(self, name: str, instead: torch.Tensor) -> torch.Tensor:
        row = self._given.row(name)
        drawn = instead if row is None else torch.from_numpy(row[None]).to(instead)
        self.notes[name].append(drawn)
        return drawn


class _Stopping(generation.StableAndConfidentStoppingCriteria):
    """The reference's stop rule, which notes its verdicts."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.verdicts: list[bool] = []

    def __call__(self, argmax_canvas: torch.Tensor, logits: torch.Tensor, **options: Any) -> Any:
        verdict = super().__call__(argmax_canvas, logits, **options)
        self.verdicts.append(bool(verdict.all()))
        return verdict
