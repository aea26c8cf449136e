"""Faults to put into kernels: every barrier taken out, and each condition by hand.

A mutant is (what stands there, what stands there instead, which occurrence of it).
"""

import re

import head_arguments
import mlx.core as mx
import numpy as np
import residual_arguments

from mlx_diffusiongemma.kernels import activation, certainty, dispatch, heads, residual, routing
from mlx_diffusiongemma.kernels.dispatch import Kernel, Launch

Mutant = tuple[str, str, int]
_BARRIER = re.compile(r"(?:threadgroup|simdgroup)_barrier\([^)]*\);")

_CHOOSING = [
    ("scores[i] < last ||", "scores[i] <= last ||", 1),
    ("e > last_id", "e >= last_id", 1),
    ("id == E || scores[i] > best", "scores[i] > best", 1),
    ("scores[i] > best)", "scores[i] >= best)", 1),
    ("score = simd_max(best)", "score = best", 1),
    ("simd_min(best == score ? id : E)", "simd_min(id)", 1),
    ("e < E ? static_cast<float>(row[e]) : -INFINITY", "static_cast<float>(row[e])", 1),
    ("is_nan ? -INFINITY : score", "score", 1),
    ("broken = broken || is_nan;", "", 1),
    ("broken = simd_any(broken);", "", 1),
    ("k == 0 ? score : best", "score", 1),
    ("broken ? NAN : own / total", "own / total", 1),
]
_SORTING = [
    ("metal::min(begin + share, rows)", "begin + share", 1),
    ("e < uint(E) ? first[e] : 0", "first[e]", 1),
    ("if (e < uint(E)) {", "{", 1),
    ("if (thread_index < 32) {", "{", 1),
    ("if (thread_index == 0) offsets", "offsets", 1),
    ("before = simd_broadcast(slot + count, 31);", "", 1),
    ("if (lane < uint(K)) {", "{", 1),
    ("for (uint e = lane; e < uint(E); e += 32) own[e] = 0;", "", 1),
]
GUARDS: dict[Kernel, list[Mutant]] = {
    routing.ROUTE: [*_CHOOSING, *_SORTING, ("if (lane < uint(K)) {", "{", 2)],
    # The functions are those of `route`; here what its body does differently.
    routing.CHOOSE: [("if (lane < uint(K)) {", "{", 2)],
    routing.SORT: [("if (lane < uint(K)) own", "own", 1)],
    residual.ADD_ATTENTION: [
        ("if (lane == 0) partial", "partial", 1),
        ("lane < simdgroups ? partial[lane] : 0.0f", "partial[lane]", 1),
        ("c < D ? static_cast<float>(attended[row + c]) : 0.0f", "float(attended[row + c])", 1),
        ("if (c < D) {", "{", 1),
        ("if (c < D) {", "{", 2),
    ],
    residual.ADD_FEED_FORWARD: [
        *(("if (c < D) {", "{", number) for number in (1, 2, 3, 4)),
        ("values[i] = 0.0f;", "", 1),
        ("combined[i] = 0.0f;", "", 1),
        ("k < first + K", "k <= first + K", 1),
    ],
    certainty.LOGIT_STATISTICS: [
        ("if (part.sum == 0.0f) return part;", "", 1),
        ("a.at < b.at", "a.at > b.at", 1),
        ("a.largest > b.largest ||", "", 1),
        ("a = moved(a, result.largest);", "", 1),
        ("b = moved(b, result.largest);", "", 1),
        ("x > part.largest", "x >= part.largest", 1),
        ("part = moved(part, x);", "", 1),
        ("if (x != -INFINITY) {", "{", 1),
        ("if (lane == 0) {", "{", 1),
        ("if (lane == 0) {", "{", 2),
        ("if (group == 0) {", "{", 1),
        ("bool used = lane < THREADS / 32", "bool used = true", 1),
        ("part.at == vocabulary ? 0 : part.at", "part.at", 1),
    ],
    certainty.ACCEPT: [
        ("if (metal::isnan(x) || metal::isnan(y)) {", "if (false) {", 1),
        ("(!metal::isnan(x) || j < i)", "true", 1),
        ("(x == y && j < i)", "x == y", 1),
        ("i < length ? entropy[place] : 0.0f", "entropy[place]", 1),
        ("if (i < length) {", "{", 1),
        ("if (i == 0) {", "{", 1),
        ("sum - each", "sum", 1),
        ("if (i < length) accepted", "accepted", 1),
    ],
    heads.PREPARE_HEADS: [
        ("slot < uint(H);", "slot <= uint(H);", 1),
        ("!is_query && slot < uint(H + KV)", "!is_query", 1),
        ("is_query ? slot : (slot - H) % KV", "slot % KV", 1),
        ("uint heads = is_query ? H : KV", "uint heads = H", 1),
        ("if (p < PAIRS) {", "{", 1),
        ("if (p < PAIRS) {", "{", 2),
        ("first[i] = 0.0f;", "", 1),
        ("second[i] = 0.0f;", "", 1),
        ("if (is_query || is_key) {", "{", 1),
        ("is_query ? query_norm[p] : key_norm[p]", "query_norm[p]", 1),
        ("int(row)", "0", 1),
        ("offset + ", "", 1),
    ],
    # No barrier and no condition; instead what the addresses are made of.
    activation.GEGLU: [
        (" * STRIDE", " * F", 1),
        (" + OFFSET", "", 1),
        (" * F + column", " * STRIDE + column", 1),
        ("1.0f + ", "", 1),
    ],
}
# They call no function that has one.
WITHOUT_BARRIERS = {routing.CHOOSE}


def barriers(kernel: Kernel) -> list[Mutant]:
    """One mutant for each barrier of the source that this kernel comes by."""
    text = "\0".join(dispatch.source(kernel))
    found = [] if kernel in WITHOUT_BARRIERS else _BARRIER.findall(text)
    return [(old, "", 1 + found[:index].count(old)) for index, old in enumerate(found)]


def routing_scores() -> mx.array:
    """Rows that need every condition: ties, broken ones, a buffer's end; 3 for each simdgroup."""
    scores = np.random.default_rng(1).normal(size=(70, 40)).astype(np.float32)
    scores[1] = 0
    scores[2, 20] = np.nan
    scores[3] = np.nan
    scores[4] = -np.inf
    scores[5, 20] = np.inf
    scores[6:40, 7] = 9  # the same expert in neighbouring rows, in other lanes
    scores[6:40:2, 8] = 10
    return mx.array(scores)


def logits() -> mx.array:
    """Rows with ties in one thread and across threads, forbidden tokens, and broken ones."""
    rows = np.random.default_rng(3).normal(size=(6, 2100)).astype(np.float32)
    rows[0, [70, 70 + 288, 1500]] = 9  # 288 threads
    rows[1, 3:2000] = -np.inf
    rows[2] = -np.inf
    rows[3, 5] = np.nan
    rows[4] = np.nan
    return mx.array(rows)


def entropies() -> mx.array:
    """Two canvases that fill no simdgroup, with ties and NaN; only the first few are accepted."""
    rows = np.random.default_rng(4).gamma(1.0, size=(2, 70)).astype(np.float32)
    rows[0, ::3] = 0.5
    rows[1, [3, 60]] = np.nan
    return mx.array(rows)


def launch_of(kernel: Kernel) -> Launch:
    """A launch in which every mutant must show."""
    scores, scale = routing_scores(), mx.arange(1, 41).astype(mx.float32)
    some = np.random.default_rng(2).permuted(np.tile(np.arange(40), (70, 1)), axis=1)[:, :4]
    rows, width = 3, 264  # two simdgroups; the last of five shares is not full
    launches = {
        routing.ROUTE: routing.route_launch(scores, scale, 4),
        routing.CHOOSE: routing.choose_launch(scores, scale, 4),
        routing.SORT: routing.sort_launch(mx.array(some).astype(mx.uint32), 40),
        activation.GEGLU: activation.geglu_halves_launch(scores),
        certainty.LOGIT_STATISTICS: certainty.logit_statistics_launch(logits()),
        certainty.ACCEPT: certainty.accept_launch(entropies(), 3.0),
        heads.PREPARE_HEADS: heads.prepare_heads_launch(
            *head_arguments.arguments(2, 3, 4, 2, 80, mx.float32)
        ),
        residual.ADD_ATTENTION: residual.add_attention_launch(
            *residual_arguments.attention(rows, width, mx.float32)
        ),
        residual.ADD_FEED_FORWARD: residual.add_feed_forward_launch(
            *residual_arguments.feed_forward(rows, width, mx.float32)
        ),
    }
    return launches[kernel]
