"""A KV cache as a file: safetensors with the tokens, and with what it was made with.

    layers.N.keys, layers.N.values       [1, K, S, D]; of a sliding layer the last S tokens
    layers.N.M.keys, layers.N.M.values   the window before the marked position M, if it was copied
    tokens                               int32 [S], what was read

A file that belongs to another model or template is refused: its numbers would be nonsense there.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from safetensors import SafetensorError, safe_open

from mlx_diffusiongemma.errors import PromptCacheError
from mlx_diffusiongemma.model import DiffusionGemma
from mlx_diffusiongemma.prefix_cache import PrefixCache

_FORMAT = "mlx-diffusiongemma prompt cache"
VERSION = "1"
_SAMPLES = 64  # values of each parameter that the fingerprint looks at
_ADVICE = "delete the file to have it written anew, or name another"
_WAS_MADE_WITH = {
    "model": "another model, or computed in another dtype",
    "template": "another tokenizer or chat template",
}


@dataclass(frozen=True)
class Identity:
    """What a prompt cache was made with, as fingerprints."""

    model: str
    template: str


def model_fingerprint(model: DiffusionGemma) -> str:
    """Differs between models whose caches differ: architecture, dtypes, samples of every weight.

    It reads some values of every parameter, which takes milliseconds, and not the whole model.
    """
    digest = hashlib.sha256(repr(model.config).encode())
    samples = []
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for name, array in sorted(parameters.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        flat = array.reshape(-1)
        samples.append(flat[:: max(1, flat.size // _SAMPLES)][:_SAMPLES].view(mx.uint8))
    digest.update(bytes(mx.concatenate(samples)))
    return digest.hexdigest()


def save_prompt_cache(path: Path, cache: PrefixCache, identity: Identity) -> int:
    """Write what `cache` holds and return the bytes of the file, which appears whole or not."""
    if not cache.tokens:
        raise PromptCacheError("nothing has been read yet", hint="take a turn first")
    arrays = cache.kv.to_arrays() | {"tokens": mx.array(cache.tokens, mx.int32)}
    metadata = {"format": _FORMAT, "version": VERSION} | asdict(identity)
    metadata["marks"] = " ".join(map(str, cache.kv.marks))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            mx.save_safetensors(file, arrays, metadata)
        size = part.stat().st_size
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return size


def load_prompt_cache(
    path: Path, cache: PrefixCache, identity: Identity, model: DiffusionGemma
) -> None:
    """Fill `cache` from a file; PromptCacheError and `cache` as it was when that does not fit."""
    metadata = _checked_metadata(path, identity)
    arrays: dict[str, mx.array] = mx.load(str(path), format="safetensors")  # type: ignore[assignment]
    try:
        tokens: list[int] = arrays["tokens"].tolist()  # type: ignore[assignment]
        marks = [int(mark) for mark in metadata["marks"].split()]
        kv = cache.new_kv()
        kv.restore(arrays, len(tokens), marks)
        damage = next(_misshapen(arrays, model, len(tokens)), None)
    except (KeyError, ValueError) as error:
        damage = str(error)
    if damage is not None:
        raise PromptCacheError(f"`{path}` is damaged: {damage}", hint=_ADVICE)
    mx.eval(kv.arrays)
    cache.hold(tokens, kv)


def _checked_metadata(path: Path, identity: Identity) -> Mapping[str, str]:
    path.open("rb").close()  # says better than safetensors what is wrong with a path
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise PromptCacheError(
            f"`{path}` is no prompt cache, or it was cut short: {error}", hint=_ADVICE
        ) from None
    if metadata.get("format") != _FORMAT:
        raise PromptCacheError(f"`{path}` is no prompt cache", hint="name another file")
    if metadata.get("version") != VERSION:
        raise PromptCacheError(
            f"`{path}` has version {metadata.get('version')} of the layout, and this program "
            f"reads version {VERSION}",
            hint=_ADVICE,
        )
    for name, wanted in asdict(identity).items():
        if metadata.get(name) != wanted:
            raise PromptCacheError(f"`{path}` was made with {_WAS_MADE_WITH[name]}", hint=_ADVICE)
    return metadata


def _misshapen(arrays: Mapping[str, mx.array], model: DiffusionGemma, tokens: int) -> Iterator[str]:
    """Names of arrays that no layer of the model could have written."""
    window = model.config.sliding_window
    for index, layer in enumerate(model.config.layers):
        least = min(tokens, window - 1) if layer.is_sliding else tokens
        for name in f"layers.{index}.keys", f"layers.{index}.values":
            batch, heads, stored, head_dim = arrays[name].shape
            sizes = (batch, heads, head_dim) == (1, layer.num_key_value_heads, layer.head_dim)
            if not sizes or not least <= stored <= tokens:
                yield name
