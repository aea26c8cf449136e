"""DiffusionGemma: one set of weights, two passes.

    prefill(tokens, cache)                   causal, writes the KV cache
    next_logits(token, cache)                the same for one token, and what comes after it
    denoise(canvas, cache, previous_logits)  bidirectional over the canvas, reads the KV cache
    predict(canvas, cache, belief)           the same as `generate` asks it: nothing is made twice
    prefill_rows, predict_rows               the same for several sequences in one pass

Module paths are the tensor names of the released checkpoint, so loading renames nothing.
Shapes: B batch, S prompt, L canvas, V vocabulary, D hidden.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import mlx.core as mx
from mlx import nn

from mlx_diffusiongemma.config import ModelConfig
from mlx_diffusiongemma.kernels import Belief, Logits, Stream
from mlx_diffusiongemma.kernels.dispatch import on_cpu
from mlx_diffusiongemma.model.attention import Piece
from mlx_diffusiongemma.model.cache import KVCache, LayerCache
from mlx_diffusiongemma.model.chunks import packed
from mlx_diffusiongemma.model.decoder_layer import DecoderLayer
from mlx_diffusiongemma.model.layers import Embedding, RMSNorm, embedding_scale
from mlx_diffusiongemma.model.self_conditioning import SelfConditioning, believed, soft_embedding

PREFILL_CHUNK = 2048
# Without a fused kernel, attention within a window costs as much as without one: so a chunk should
# not be much longer than the window. And Ctrl-C waits for the end of a chunk.
_CPU_CHUNK = 256
_Row = tuple[int, KVCache]  # how many tokens of a pass belong to one sequence, and its cache


class _Decoder(nn.Module):
    """The text stack; the prefill pass runs on it too."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(config, layer) for layer in config.layers]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_conditioning = SelfConditioning(config)

    def start(self, x: mx.array) -> Stream:
        """What the first layer gets, for embeddings of float [B, L, D]."""
        return Stream(x, self.layers[0].input_layernorm(x))

    def next_norms(self) -> list[mx.array]:
        """For each layer the weight of the norm that follows it; after the last one the final."""
        return [layer.input_layernorm.weight for layer in self.layers[1:]] + [self.norm.weight]


class _PrefillScalar(nn.Module):
    """What the prefill pass has of its own in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_scalar = mx.ones((1,))


class _PrefillScalars(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.layers = [_PrefillScalar() for _ in config.layers]


class _Encoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.language_model = _PrefillScalars(config)


class _Body(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.decoder = _Decoder(config)
        self.encoder = _Encoder(config)


class DiffusionGemma(nn.Module):
    """The model for people who write their own samplers.

        cache = model.make_cache()
        model.prefill(tokens, cache)
        logits = model.denoise(canvas, cache, None)

    Source: transformers `DiffusionGemmaForBlockDiffusion`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.model = _Body(config)

    @property
    def compute_dtype(self) -> mx.Dtype:
        """The dtype of activations: that of the weights that are never quantised."""
        return self.model.decoder.norm.weight.dtype

    def make_cache(self, rewind_tokens: int = 0) -> KVCache:
        """An empty KV cache for one batch.

        `rewind_tokens` is how many tokens of their past sliding layers keep beyond what they see,
        so that `KVCache.rewind` can go back that far from anywhere.
        """
        window, canvas_length = self.config.sliding_window, self.config.canvas_length
        return KVCache(
            [
                LayerCache(window if layer.is_sliding else None, canvas_length, rewind_tokens)
                for layer in self.config.layers
            ]
        )

    def prefill(self, tokens: mx.array, cache: KVCache, chunk_size: int | None = None) -> mx.array:
        """Read tokens causally and add them to the cache.

        Args:
            tokens: int32 [B, S], S of 1 or more.
            cache: from `make_cache`; holds S more tokens afterwards.
            chunk_size: tokens read at a time; None takes what suits the device. The cache is
                evaluated after each chunk, so memory stays linear in S; the result does not depend
                on it but for rounding.

        Returns:
            float [B, C, D], hidden states of the last chunk after the final norm, for
            `head`. Lazy: it costs nothing unless it is evaluated.
        """
        length = tokens.shape[1]
        cache.expect(cache.offset + length + self.config.canvas_length)
        hidden = tokens
        size = chunk_size or (_CPU_CHUNK if on_cpu() else PREFILL_CHUNK)
        for start in range(0, length, size):
            chunk = tokens[:, start : start + size]
            hidden = self._prefill_chunk(chunk, [(chunk.shape[1], cache)])
            mx.eval(cache.arrays)
            mx.clear_cache()  # each chunk sees a longer prefix, so its buffers fit no other
        return hidden

    def prefill_rows(
        self,
        rows: Sequence[Sequence[int]],
        caches: Sequence[KVCache],
        chunk_size: int = PREFILL_CHUNK,
    ) -> int:
        """Read the tokens of several sequences causally, each into its own cache.

        They lie one behind the other in as few passes of `chunk_size` tokens as hold them all;
        returns how many those were.
        """
        for row, cache in zip(rows, caches, strict=True):
            cache.expect(cache.offset + len(row) + self.config.canvas_length)
        chunks = packed([len(row) for row in rows], chunk_size)
        for chunk in chunks:
            tokens = [token for index, piece in chunk for token in rows[index][piece]]
            own = [caches[index] for index, _ in chunk]
            lengths = [piece.stop - piece.start for _, piece in chunk]
            self._prefill_chunk(mx.array([tokens], mx.int32), list(zip(lengths, own, strict=True)))
            mx.eval([cache.arrays for cache in own])
            mx.clear_cache()
        return len(chunks)

    def next_logits(self, token: mx.array, cache: KVCache) -> mx.array:
        """Read one token causally, add it to the cache, and predict the one after it.

        Everything is left lazy, `cache` too, so that the passes of several tokens can be queued.

        Args:
            token: int32 [B, 1]; may be lazy itself.
            cache: from `make_cache`; holds one more token afterwards.

        Returns:
            float32 [B, 1, V], softcapped logits.
        """
        return self.head(self.read_lazily(token, cache))

    def read_lazily(self, tokens: mx.array, cache: KVCache) -> mx.array:
        """`prefill` in one piece, `cache` left lazy too, so that graphs alone can be looked at."""
        return self._prefill_chunk(tokens, [(tokens.shape[1], cache)])

    def denoise(
        self, canvas: mx.array, cache: KVCache, previous_logits: mx.array | None
    ) -> mx.array:
        """Predict every token of the canvas at once. The cache's tokens stay as they are.

        Args:
            canvas: int32 [B, L], noisy tokens that follow the cached ones.
            cache: prefilled.
            previous_logits: float32 [B, L, V], the temperature-scaled logits of the step before;
                None at the first step.

        Returns:
            float32 [B, L, V], softcapped logits.
        """
        belief = None if previous_logits is None else believed(Logits(previous_logits))
        return self.predict(canvas, cache, belief).values()

    def predict(self, canvas: mx.array, cache: KVCache, belief: Belief | None) -> Logits:
        """`denoise` without an array as wide as the vocabulary but that of the head.

        Args:
            canvas: int32 [B, L].
            cache: prefilled.
            belief: what the step before believed, at its temperature; None at the first step.

        Returns:
            logits [B, L, V] at temperature 1.
        """
        hidden = self._denoise(self._begin_step(canvas, belief), [(canvas.shape[1], cache)])
        return self._raw_logits(hidden)

    def predict_rows(
        self,
        canvases: Sequence[mx.array],
        caches: Sequence[KVCache],
        beliefs: Sequence[Belief | None],
    ) -> list[Logits]:
        """`predict` for the canvases of several sequences in one pass.

        The layers see all tokens at once, so that each weight is read once. Arrays as wide as the
        vocabulary are made for one sequence at a time, and the results are left lazy: evaluate them
        one by one, and no two sequences need that room together.

        Args:
            canvases: int32 [1, L] each; lengths may differ.
            caches, beliefs: one for each canvas.

        Returns:
            logits [1, L, V] each, at temperature 1.
        """
        begun = []
        for canvas, belief in zip(canvases, beliefs, strict=True):
            begun.append(self._begin_step(canvas, belief))
            mx.eval(*begun[-1])
        lengths = [canvas.shape[1] for canvas in canvases]
        stream = Stream(*[mx.concatenate(list(each), axis=1) for each in zip(*begun, strict=True)])
        hidden = self._denoise(stream, list(zip(lengths, caches, strict=True)))
        mx.eval(hidden)
        ends = list(accumulate(lengths))
        return [self._raw_logits(row) for row in mx.split(hidden, ends[:-1], axis=1)]

    def residual_peak(self, tokens: mx.array) -> mx.array:
        """float32 scalar: the largest magnitude in the residual stream of int32 [1, S]; or NaN."""
        streams = self._prefill_layers(tokens, [(tokens.shape[1], self.make_cache())])
        peaks = [mx.max(mx.abs(stream.residual.astype(mx.float32))) for stream in streams]
        return mx.max(mx.stack(peaks))

    def _begin_step(self, canvas: mx.array, belief: Belief | None) -> Stream:
        """What the first layer gets: the canvas's embeddings, conditioned on the step before."""
        decoder, dtype = self.model.decoder, self.compute_dtype
        soft = [] if belief is None else soft_embedding(belief, decoder.embed_tokens, dtype)
        embedded = decoder.embed_tokens(canvas).astype(dtype)
        scale = embedding_scale(self.config.hidden_size, dtype)
        norm = decoder.layers[0].input_layernorm.weight
        return decoder.self_conditioning(embedded, soft, scale, norm)

    def _denoise(self, stream: Stream, rows: Sequence[_Row]) -> mx.array:
        decoder = self.model.decoder
        layers = zip(decoder.layers, decoder.next_norms(), strict=True)
        for index, (layer, norm) in enumerate(layers):
            stream = layer.denoise(stream, _pieces(rows, index), norm)
        return stream.normed

    def _raw_logits(self, hidden: mx.array) -> Logits:
        scores = self.model.decoder.embed_tokens.as_linear(hidden)
        return Logits(scores, cap=self.config.final_logit_softcapping)

    def head(self, hidden: mx.array) -> mx.array:
        """float [B, L, D] after the final norm -> float32 [B, L, V], softcapped logits.

        On hidden states of `prefill` these are next-token logits: that pass is a causal language
        model.
        """
        return self._raw_logits(hidden).values()

    def _prefill_chunk(self, tokens: mx.array, rows: Sequence[_Row]) -> mx.array:
        *_, last = self._prefill_layers(tokens, rows)
        for length, cache in rows:
            cache.offset += length
        return last.normed

    def _prefill_layers(self, tokens: mx.array, rows: Sequence[_Row]) -> Iterator[Stream]:
        """What each layer hands on."""
        decoder = self.model.decoder
        stream = decoder.start(self._embed(tokens))
        scalars = self.model.encoder.language_model.layers
        layers = zip(decoder.layers, scalars, decoder.next_norms(), strict=True)
        for index, (layer, own, norm) in enumerate(layers):
            stream = layer.prefill(stream, _pieces(rows, index), own.layer_scalar, norm)
            yield stream

    def _embed(self, tokens: mx.array) -> mx.array:
        dtype = self.compute_dtype
        embedded = self.model.decoder.embed_tokens(tokens).astype(dtype)
        return embedded * embedding_scale(self.config.hidden_size, dtype)


def _pieces(rows: Sequence[_Row], layer: int) -> list[Piece]:
    return [Piece(length, cache.layers[layer], cache.offset) for length, cache in rows]
