"""DiffusionGemma in PyTorch for training: encoder and decoder as one packed forward pass.

    [ clean part: causal, the encoder ]  [ canvas 1 ] ... [ canvas K ]: the decoder

Both roles share every weight but `layer_scalar`, so one pass over the packed row computes both:
the mask lets canvas k see itself and the clean part before it, as it sees the cache at run time.
Letters: B rows, S clean length, K canvases, L canvas length, N = S + K*L, D hidden, H heads,
V vocabulary.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

CANVAS_LENGTH = 32
SOFTCAP = 30.0


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; every matmul input width is a multiple of 64."""

    vocab_size: int = 1024
    hidden: int = 128
    layers: str = "ssfsf"  # s: sliding attention, f: full attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    full_kv_heads: int = 1
    full_head_dim: int = 64
    window: int = 32
    dense: int = 128
    experts: int = 8
    top_k: int = 2
    expert: int = 64
    rope_theta: float = 1e4
    full_rope_theta: float = 1e6
    full_rope_share: float = 0.25


@dataclass(frozen=True)
class Layout:
    """Where things lie in a packed row."""

    prompt_length: int
    clean_canvases: int
    canvases: int

    @property
    def clean_length(self) -> int:
        """Length of the part that the encoder reads."""
        return self.prompt_length + self.clean_canvases * CANVAS_LENGTH

    def positions(self) -> torch.Tensor:
        """Position of every token [N]: canvas k continues after the k blocks before it."""
        canvas = torch.arange(self.canvases * CANVAS_LENGTH) + self.prompt_length
        return torch.cat([torch.arange(self.clean_length), canvas])

    def visible(self, window: int | None) -> torch.Tensor:
        """Who may attend to whom, [N, N], before padding is hidden."""
        clean = self.clean_length
        length = clean + self.canvases * CANVAS_LENGTH
        token = torch.arange(length)
        canvas = (token - clean).div(CANVAS_LENGTH, rounding_mode="floor")
        query, key = token[:, None], token[None]
        is_canvas, key_is_clean = query >= clean, key < clean
        begin = (
            self.prompt_length + canvas[:, None] * CANVAS_LENGTH
        )  # where the query's canvas begins
        causal = key_is_clean & (key <= query)
        before = key_is_clean & (key < begin)
        if window is not None:
            causal &= key > query - window
            before &= key >= begin - (window - 1)
        same = ~key_is_clean & (canvas[None] == canvas[:, None])
        return torch.where(is_canvas, before | same, causal)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Divide by the root mean square over the last axis, in float32."""
    x = x.float()
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return normed if weight is None else normed * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding over halves."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def gated(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """GeGLU feed-forward."""
    return F.linear(F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up), down)


def matrix(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    """A normal matrix that keeps the variance of its input, times `gain`."""
    return nn.Parameter(torch.randn(rows, columns) * gain / math.sqrt(columns))


def ones(size: int) -> nn.Parameter:
    """A weight that starts as the identity."""
    return nn.Parameter(torch.ones(size))


class Layer(nn.Module):
    """Attention, then a dense and a routed feed-forward side by side."""

    def __init__(self, shape: Shape, kind: str):
        super().__init__()
        self.shape, self.sliding = shape, kind == "s"
        width = shape.hidden
        self.head_dim = shape.head_dim if self.sliding else shape.full_head_dim
        self.kv_heads = shape.kv_heads if self.sliding else shape.full_kv_heads
        self.q = matrix(shape.heads * self.head_dim, width)
        self.k = matrix(self.kv_heads * self.head_dim, width)
        self.v = matrix(self.kv_heads * self.head_dim, width) if self.sliding else None
        self.o = matrix(width, shape.heads * self.head_dim)
        self.q_norm, self.k_norm = ones(self.head_dim), ones(self.head_dim)
        self.input_norm, self.post_attention_norm = ones(width), ones(width)
        self.dense_norm, self.post_dense_norm = ones(width), ones(width)
        self.routed_norm, self.post_routed_norm = ones(width), ones(width)
        self.post_norm = ones(width)
        self.gate, self.up, self.down = (
            matrix(shape.dense, width),
            matrix(shape.dense, width),
            matrix(width, shape.dense),
        )
        self.router = matrix(shape.experts, width, math.sqrt(width))
        self.router_scale, self.per_expert_scale = ones(width), ones(shape.experts)
        self.expert_gate = matrix(shape.experts * shape.expert, width)
        self.expert_up = matrix(shape.experts * shape.expert, width)
        # The experts' down projections side by side: [D, E * expert width].
        self.expert_down = nn.Parameter(
            torch.randn(width, shape.experts * shape.expert) / math.sqrt(shape.expert)
        )
        self.encoder_scalar, self.decoder_scalar = ones(1), ones(1)

    def attend(
        self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        """Attention with normed queries and keys, scale 1; full layers use the keys as values."""
        rows, length, _ = x.shape
        q = F.linear(x, self.q).view(rows, length, self.shape.heads, self.head_dim)
        k = F.linear(x, self.k).view(rows, length, self.kv_heads, self.head_dim)
        v = F.linear(x, self.v).view(k.shape) if self.v is not None else k
        q, k, v = (
            rotate(rms_norm(q, self.q_norm), *rope),
            rotate(rms_norm(k, self.k_norm), *rope),
            rms_norm(v),
        )
        q, k, v = (part.transpose(1, 2).to(mask.dtype) for part in (q, k, v))
        groups = self.shape.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        # Spelled out: the fused attention's backward pass is several times slower on a CPU.
        mixed = (
            torch.softmax(q @ k.transpose(-1, -2) + mask, -1, dtype=torch.float32).to(v.dtype) @ v
        )
        return F.linear(mixed.transpose(1, 2).reshape(rows, length, -1), self.o)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight of every expert [B, N, E], zero where not chosen, and the balance loss."""
        shape = self.shape
        with torch.autocast("cpu", enabled=False):
            scaled = rms_norm(x) * self.router_scale * shape.hidden**-0.5
            probability = torch.softmax(F.linear(scaled, self.router), -1)
        best, chosen = probability.topk(shape.top_k, -1)
        weight = torch.zeros_like(probability).scatter(
            -1, chosen, best / best.sum(-1, keepdim=True)
        )
        load = (weight > 0).float().mean((0, 1)) / shape.top_k
        balance = shape.experts * (load * probability.mean((0, 1))).sum()
        return weight * self.per_expert_scale, balance

    def experts(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """All experts as one wide feed-forward; those not chosen have weight zero."""
        inner = F.gelu(F.linear(x, self.expert_gate), approximate="tanh") * F.linear(
            x, self.expert_up
        )
        inner = inner.unflatten(-1, (self.shape.experts, self.shape.expert)) * weight[..., None].to(
            inner.dtype
        )
        return F.linear(inner.flatten(-2), self.expert_down)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        is_canvas: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [B, N, D] and the balance loss."""
        x = x + rms_norm(
            self.attend(rms_norm(x, self.input_norm), rope, mask), self.post_attention_norm
        )
        weight, balance = self.route(x)
        dense = rms_norm(
            gated(rms_norm(x, self.dense_norm), self.gate, self.up, self.down), self.post_dense_norm
        )
        routed = rms_norm(
            self.experts(rms_norm(x, self.routed_norm), weight), self.post_routed_norm
        )
        x = x + rms_norm(dense + routed, self.post_norm)
        return x * torch.where(is_canvas, self.decoder_scalar, self.encoder_scalar), balance


class Network(nn.Module):
    """The text model of DiffusionGemma."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        width = shape.hidden
        self.embedding = nn.Parameter(torch.randn(shape.vocab_size, width) / math.sqrt(width))
        self.norm, self.soft_norm = ones(width), ones(width)
        self.soft_gate, self.soft_up = matrix(shape.dense, width), matrix(shape.dense, width)
        self.soft_down = matrix(width, shape.dense)
        self.layers = nn.ModuleList([Layer(shape, kind) for kind in shape.layers])

    def condition(
        self, embedded: torch.Tensor, previous_logits: torch.Tensor | None
    ) -> torch.Tensor:
        """Canvas embeddings with the soft embedding of the step before; `None` on the first step.

        `previous_logits` may hold fewer rows than the canvas: the other rows get none.
        """
        rows, length, width = embedded.shape
        soft = embedded.new_zeros(rows, length, width)
        if previous_logits is not None:
            probability = torch.softmax(previous_logits.float(), -1)
            seen = F.linear(probability, self.embedding.t()).float() * width**0.5
            soft = torch.cat([seen, soft[len(seen) :]])
        signal = gated(rms_norm(soft, self.soft_norm), self.soft_gate, self.soft_up, self.soft_down)
        return rms_norm(embedded + signal)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Softcapped logits [..., V] in float32."""
        logits = F.linear(rms_norm(hidden, self.norm), self.embedding).float()
        return SOFTCAP * torch.tanh(logits / SOFTCAP)

    def forward(
        self,
        clean: torch.Tensor,
        valid: torch.Tensor,
        canvas: torch.Tensor,
        layout: Layout,
        previous_logits: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states of the clean part [B, S, D], of the canvases [B, K*L, D]; balance loss."""
        scale = self.shape.hidden**0.5
        embedded = F.embedding(canvas, self.embedding) * scale
        x = torch.cat(
            [F.embedding(clean, self.embedding) * scale, self.condition(embedded, previous_logits)],
            1,
        )
        ropes, masks, is_canvas = geometry(self.shape, layout)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        shown = F.pad(valid, (0, canvas.shape[1]), value=True)[:, None, None] | torch.eye(
            x.shape[1], dtype=torch.bool
        )
        hidden_keys = torch.zeros(shown.shape, dtype=dtype).masked_fill(~shown, float("-inf"))
        bias = {kind: hidden_keys + mask.to(dtype) for kind, mask in masks.items()}
        balance = x.new_zeros(())
        for kind, layer in zip(self.shape.layers, self.layers, strict=True):
            x, layer_balance = layer(x, ropes[kind], bias[kind], is_canvas)
            balance = balance + layer_balance / len(self.layers)
        return x[:, : layout.clean_length], x[:, layout.clean_length :], balance


@cache
def geometry(
    shape: Shape, layout: Layout
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, torch.Tensor], torch.Tensor]:
    """Rotary tables, additive masks and the canvas flag of a layout, per kind of layer."""
    positions = layout.positions().float()
    rotated = int(shape.full_rope_share * shape.full_head_dim // 2)
    full = shape.full_rope_theta ** -(torch.arange(0, 2 * rotated, 2).float() / shape.full_head_dim)
    frequencies = {
        "s": shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim),
        "f": F.pad(full, (0, shape.full_head_dim // 2 - rotated)),
    }
    ropes, masks = {}, {}
    for kind, frequency in frequencies.items():
        angles = torch.cat([positions[:, None] * frequency] * 2, -1)[None, :, None]
        ropes[kind] = (angles.cos(), angles.sin())
        visible = layout.visible(shape.window if kind == "s" else None) | torch.eye(
            len(positions), dtype=torch.bool
        )
        masks[kind] = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    is_canvas = (torch.arange(len(positions)) >= layout.clean_length)[None, :, None]
    return ropes, masks, is_canvas
