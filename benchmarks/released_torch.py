"""transformers at the released model's dimensions: prefill, a decoder pass, a token; prints JSON.

    python benchmarks/released_torch.py            30 layers in bfloat16: 51 GB of GPU memory
    python benchmarks/released_torch.py --small    tiny dimensions, on any device

The same dimensions, prompt and canvas as released_step.py; random weights, made on the device. Exit
code 4 when the weights do not fit.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from released_step import FULL_PLAN, SMALL_PLAN, Plan, values_of
from synthetic_released import VISION_CONFIG
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache

from mlx_diffusiongemma.parity.reference import CACHE

DOES_NOT_FIT = 4
WEIGHT_BYTES = 51e9  # of the released model in bfloat16
EXPERTS = ("grouped_mm", "batched_mm", "eager")  # the first that works here


@contextmanager
def without_weights() -> Iterator[None]:
    """Parameters made meanwhile take no memory; buffers are made as they are."""
    register = torch.nn.Module.register_parameter

    def bodiless(module: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = bodiless  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def random_model(values: dict[str, Any], device: str) -> DiffusionGemmaForBlockDiffusion:
    """The reference with random weights; those that it ties stay tied."""
    config = DiffusionGemmaConfig(**values)
    torch.set_default_dtype(torch.bfloat16)
    with without_weights(), torch.device(device):
        model = DiffusionGemmaForBlockDiffusion(config)
    model.tie_weights()
    places = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places[parameter].append(name)
    for parameter, names in places.items():
        shape = parameter.shape
        made = torch.ones(shape, device=device)
        if len(shape) > 1:
            made = torch.randn(shape, device=device) * shape[-1] ** -0.5
        made = torch.nn.Parameter(made, requires_grad=False)
        for name in names:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path)._parameters[leaf] = made
    return model.eval()


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _seconds(body: Callable[[], Any], repeats: int, device: str) -> float:
    """Median over the repeats."""
    taken = []
    for _ in range(repeats):
        _synchronise(device)
        started = time.perf_counter()
        body()
        _synchronise(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@torch.no_grad()
def measure(model: DiffusionGemmaForBlockDiffusion, plan: Plan, device: str) -> dict[str, Any]:
    """Seconds, by the names of released_step.py."""
    text = model.config.get_text_config(decoder=True)
    encoder = model.model.encoder.language_model
    length, vocab_size = model.config.canvas_length, text.vocab_size
    generator = torch.Generator().manual_seed(1)

    def drawn(count: int) -> torch.Tensor:
        return torch.randint(8, vocab_size, (1, count), generator=generator).to(device)

    def prefill(ids: torch.Tensor) -> DynamicCache:
        cache = DynamicCache(config=text)
        encoder(input_ids=ids, **{CACHE: cache})
        return cache

    prompts = [drawn(count) for count in plan.prompt_tokens]
    canvas, cache = drawn(length), prefill(prompts[0])
    held = {CACHE: cache}
    logits = model(decoder_input_ids=canvas, **held).logits.to(model.dtype)

    def one_pass() -> None:
        model(decoder_input_ids=canvas, self_conditioning_logits=logits, **held)

    def one_token() -> None:
        hidden = encoder(input_ids=canvas[:, :1], **held).last_hidden_state
        model.lm_head(hidden).argmax(-1)

    one_pass()
    prefilled = []
    for ids in prompts:
        seconds = _seconds(lambda ids=ids: prefill(ids), plan.repeats, device)
        count = ids.shape[1]
        prefilled.append(
            {"tokens": count, "seconds": seconds, "tokens_per_second": count / seconds}
        )
    pass_seconds = _seconds(one_pass, plan.repeats, device)
    token_seconds = _seconds(one_token, plan.tokens, device)
    return {
        "prefill": prefilled,
        "pass_seconds": pass_seconds,
        "left_to_right": {"tokens": plan.tokens, "tokens_per_second": 1 / token_seconds},
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def measured_with_experts(values: dict[str, Any], plan: Plan, device: str) -> dict[str, Any]:
    """With the first way to compute experts that works on this device, and what it is called."""
    model, problems = random_model(values, device), {}
    for name in EXPERTS:
        try:
            model.set_experts_implementation(name)
            return {"experts": name, "not_working": problems, **measure(model, plan, device)}
        except (RuntimeError, ValueError, NotImplementedError) as error:
            problems[name] = str(error).splitlines()[0][:200]
    sys.exit(f"no way to compute experts works here: {problems}")


def main() -> None:
    """Measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny dimensions")
    small = parser.parse_args().small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    if not small and memory < 1.1 * WEIGHT_BYTES:
        print(f"{WEIGHT_BYTES / 1e9:.0f} GB of weights do not fit {memory / 1e9:.0f} GB of GPU")
        sys.exit(DOES_NOT_FIT)
    values = {**values_of(small), "vision_config": VISION_CONFIG}
    found = measured_with_experts(values, SMALL_PLAN if small else FULL_PLAN, device)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": {"python": platform.python_version(), **versions},
        "dtype": "bfloat16",
    }
    print(json.dumps(about | found))


if __name__ == "__main__":
    main()
