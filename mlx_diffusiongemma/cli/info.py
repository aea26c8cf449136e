"""`dgemma-mlx info`: what a checkpoint is, from its headers alone, or what computes here."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_diffusiongemma.cli import arguments
from mlx_diffusiongemma.cli.console import labelled, print_json
from mlx_diffusiongemma.cli.device import show_device
from mlx_diffusiongemma.cli.loading import find_model
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.hub_cache import format_size

if TYPE_CHECKING:
    from mlx_diffusiongemma.config import LayerConfig, ModelConfig
    from mlx_diffusiongemma.summary import CheckpointSummary


def info_command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="`demo`, a folder, or a Hub model `org/name`.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        bool,
        typer.Option(
            "--device",
            help="Instead of a model, describe what computes here: device, memory, dtype, kernels.",
        ),
    ] = False,
    revision: arguments.Revision = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Describe MODEL: architecture, sizes, bits, defaults.

    Only headers are read. A Hub model that is not on this disk is downloaded first.
    """
    if device == (model is not None):
        raise ConfigError(
            "there are both MODEL and --device" if device else "there is no MODEL",
            hint="`dgemma-mlx info MODEL`, or `dgemma-mlx info --device`",
        )
    if model is None:
        show_device(as_json)
        return
    folder = find_model(model, revision)

    from mlx_diffusiongemma.summary import summarise

    summary = summarise(folder)
    memory = _memory(summary)
    if as_json:
        print_json(as_fields(summary, memory))
    else:
        print("\n".join(as_lines(summary, memory)))


def _memory(summary: "CheckpointSummary") -> dict[str, Any]:
    from mlx_diffusiongemma.device import DEFAULT_CONTEXT, compute_dtype, memory_need

    dtype = compute_dtype(summary.config, None)
    need = memory_need(summary.config, summary.tensors, dtype, DEFAULT_CONTEXT)
    return {
        "dtype": str(dtype).rpartition(".")[2],
        "weight_bytes": need.weights,
        "context": DEFAULT_CONTEXT,
        "total_bytes": need.total,
    }


def as_fields(summary: "CheckpointSummary", memory: dict[str, Any]) -> dict[str, Any]:
    """The summary by name, ready for JSON."""
    config, default = summary.config, summary.config.quantization.default
    return {
        "folder": str(summary.folder),
        "architecture": _architecture(config),
        "parameters": summary.parameters,
        "active_parameters": summary.active_parameters,
        "bits_per_weight": summary.bits_per_weight,
        "classes": [
            {
                "name": part.name,
                "parameters": part.parameters,
                "bits_per_weight": part.bits_per_weight,
                "bytes": part.nbytes,
            }
            for part in summary.classes
        ],
        "quantization": default and vars(default),
        "packings": [
            {"quantization": how and vars(how), "matrices": dict(counts)}
            for how, counts in summary.packings.items()
        ],
        "dtype": summary.dtype,
        "disk": {"files": summary.files, "bytes": summary.file_bytes},
        "memory": memory,
        "not_loaded": {
            part.reason: {"tensors": part.tensors, "bytes": part.nbytes}
            for part in summary.left_out
        },
        "unknown": list(summary.unknown),
        "chat_template": summary.has_chat_template,
        "thinking": summary.supports_thinking,
        "defaults": vars(summary.generation_config.sampler),
        "end_tokens": sorted(summary.generation_config.eos_token_ids),
    }


def _architecture(config: "ModelConfig") -> dict[str, Any]:
    sliding = [layer for layer in config.layers if layer.is_sliding]
    full = [layer for layer in config.layers if not layer.is_sliding]
    return {
        "layers": len(config.layers),
        "sliding_layers": len(sliding),
        "sliding_window": config.sliding_window,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_heads": config.num_attention_heads,
        "sliding_key_value_heads": _heads(sliding),
        "full_key_value_heads": _heads(full),
        "experts": config.num_experts,
        "experts_per_token": config.top_k_experts,
        "expert_size": config.moe_intermediate_size,
        "vocabulary": config.vocab_size,
        "canvas_length": config.canvas_length,
        "context": config.max_position_embeddings,
    }


def _heads(layers: list["LayerConfig"]) -> dict[str, int] | None:
    """Number and size of the key-value heads of one kind of layer; None without such layers."""
    if not layers:
        return None
    return {"count": layers[0].num_key_value_heads, "size": layers[0].head_dim}


def as_lines(summary: "CheckpointSummary", memory: dict[str, Any]) -> Iterator[str]:
    """The summary for people."""
    yield from labelled("folder", str(summary.folder))
    yield from labelled("architecture", *_architecture_lines(_architecture(summary.config)))
    yield ""
    yield from _weights_table(summary)
    yield ""
    yield from labelled("active", f"{summary.active_parameters:,} parameters for each token")
    yield from labelled("quantization", *_quantization(summary))
    files = f"{summary.files} file" + "s" * (summary.files != 1)
    yield from labelled("on disk", f"{format_size(summary.file_bytes)} in {files}")
    yield from labelled(
        "in memory",
        f"{format_size(memory['weight_bytes'])} of weights in {memory['dtype']}",
        f"{format_size(memory['total_bytes'])} at work in {memory['dtype']} with "
        f"{memory['context']} tokens of context",
    )
    for part in summary.left_out:
        size = format_size(part.nbytes)
        yield from labelled("not loaded", f"{part.tensors} tensors ({part.reason}), {size}")
    if summary.unknown:
        yield from labelled(
            "unknown", f"{len(summary.unknown)} tensors, first `{summary.unknown[0]}`"
        )
    yield from labelled("chat template", _yes(summary.has_chat_template))
    yield from labelled("thinking", _yes(summary.supports_thinking))
    sampler = summary.generation_config.sampler
    yield from labelled(
        "defaults",
        f"{sampler.max_denoising_steps} steps, entropy bound {sampler.entropy_bound:g}, "
        f"temperature {sampler.t_max:g} to {sampler.t_min:g},",
        f"stability threshold {sampler.stability_threshold}, "
        f"confidence threshold {sampler.confidence_threshold:g}",
    )
    ends = sorted(summary.generation_config.eos_token_ids)
    yield from labelled("end tokens", ", ".join(map(str, ends)) or "none")


def _architecture_lines(parts: dict[str, Any]) -> Iterator[str]:
    full_layers = parts["layers"] - parts["sliding_layers"]
    yield (
        f"{parts['layers']} layers: {parts['sliding_layers']} sliding "
        f"(window {parts['sliding_window']}), {full_layers} full"
    )
    yield f"hidden size {parts['hidden_size']}, {parts['attention_heads']} heads"
    kinds = ("sliding", parts["sliding_key_value_heads"]), ("full", parts["full_key_value_heads"])
    heads = [f"{kind['count']} of {kind['size']} ({name})" for name, kind in kinds if kind]
    yield f"key-value heads: {', '.join(heads)}"
    yield f"dense MLP of {parts['intermediate_size']}"
    yield (
        f"{parts['experts']} experts of {parts['expert_size']}, "
        f"{parts['experts_per_token']} for each token"
    )
    yield (
        f"vocabulary {parts['vocabulary']}, canvas {parts['canvas_length']}, "
        f"context {parts['context']}"
    )


def _weights_table(summary: "CheckpointSummary") -> Iterator[str]:
    from mlx_diffusiongemma.summary import VISION

    rows = [
        (part.name, part.parameters, part.bits_per_weight, part.nbytes) for part in summary.classes
    ]
    loaded = sum(part.name != VISION for part in summary.classes)
    whole = ("text model", summary.parameters, summary.bits_per_weight, summary.nbytes)
    rows.insert(loaded, whole)  # vision comes last
    yield f"{'weights':19}  {'parameters':>14}  {'bits':>5}  {'on disk':>9}"
    for name, parameters, bits, nbytes in rows:
        yield f"{name:19}  {parameters:>14,}  {bits:>5.3g}  {format_size(nbytes):>9}"


def _quantization(summary: "CheckpointSummary") -> Iterator[str]:
    """A line for each way in which matrices are packed, with the classes that are."""
    if not any(summary.packings):
        yield f"none; {summary.dtype}"
        return
    whole = Counter[str]()
    for counts in summary.packings.values():
        whole.update(counts)
    for how, counts in summary.packings.items():
        packing = summary.dtype
        if how:
            packing = f"{how.bits} bits in groups of {how.group_size} ({how.mode})"
        parts = (
            name if count == whole[name] else f"{name} ({count} of {whole[name]} matrices)"
            for name, count in counts.items()
        )
        yield f"{packing}: {', '.join(parts)}"


def _yes(claim: bool) -> str:
    return "yes" if claim else "no"
