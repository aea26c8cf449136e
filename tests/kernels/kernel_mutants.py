"""Faults to put into kernels: every barrier taken out, and each condition by hand.

A mutant is (what stands there, what stands there instead, which occurrence of it).
"""

import re

from mlx_diffusiongemma.kernels import (
    activation,
    certainty,
    conditioning,
    dispatch,
    drawing,
    expert_products,
    heads,
    renewal,
    residual,
    routing,
    sparse,
)
from mlx_diffusiongemma.kernels.dispatch import Kernel

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
_TILES = [
    ("e < uint(E) ? offsets[e] : 0", "offsets[e]", 1),
    ("e < uint(E) ? offsets[e + 1] - begin : 0", "offsets[e + 1] - begin", 1),
    ("tile <= number && ", "", 1),
    (" && number < tile + tiles", "", 1),
    ("rows - skipped", "rows", 1),
    ("begin + skipped", "begin", 1),
    ("before = simd_broadcast(tile + tiles, 31);", "", 1),
    ("found.expert = simd_min(found.expert);", "", 1),
    ("found.first = simd_max(found.first);", "", 1),
    ("found.rows = simd_max(found.rows);", "", 1),
]
_MULTIPLYING = [
    ("k % GROUP == 0", "k == 0", 1),
    ("uint(8 * m) < rows", "uint(8 * m + 8) < rows", 1),
]
_NO_TILE_AND_ITS_END = [
    ("if (tile.expert == uint(E)) return;", "", 1),
    ("row < tile.rows && ", "", 1),
]
_STAGED = [
    *_NO_TILE_AND_ITS_END,
    ("metal::min(thread_index / (128 / ROWS), tile.rows - 1)", "thread_index / (128 / ROWS)", 1),
]
_FRAGMENTS = [
    *_NO_TILE_AND_ITS_END,
    ("metal::min(group * (ROWS / 4) + r, tile.rows - 1)", "(group * (ROWS / 4) + r)", 1),
]
_INPUTS = [
    ("metal::min(INPUTS, K - start)", "INPUTS", 1),
    ("k - of_chunk + ", "", 1),
    ("8 * step", "4 * step", 1),
    ("of_chunk / V * 2", "of_chunk / V", 1),
    (" + k % 2", "", 1),
    ("word[b], 2 * j,", "word[b], 2 * j + 1,", 1),
    ("(chunk + 8 * j)", "(chunk + 4 * j)", 1),
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
        ("if (thread_index_in_threadgroup == 0) rms", "rms", 1),
    ],
    # No condition: what its addresses are made of.
    residual.GATHER_NORMED: [
        ("rows[row * width", "rows[place * width", 1),
        ("inverse_rms[row]", "inverse_rms[place % 3]", 1),
        ("out[place * width", "out[row * width", 1),
        ("weight[column]", "weight[0]", 1),
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
    drawing.DRAW: [
        ("&& found == vocabulary", "", 1),
        ("if (start + e < vocabulary) {", "{", 1),
        ("if (lane == 0) sums", "sums", 1),
        ("lane < THREADS / 32 ? sums[lane] : 0.0f", "sums[lane]", 1),
        ("before + ", "", 1),
        ("simd_broadcast(groups_before, ushort(group))", "groups_before", 1),
        ("before += simd_sum(of_group);", "", 1),
        ("place == vocabulary && weights", "weights", 1),
        (" && weights[e] > 0.0f", "", 1),
        ("place = simd_min(place);", "", 1),
        ("if (lane == 0) places", "places", 1),
        ("lane < THREADS / 32 ? places[lane] : vocabulary", "places[lane]", 1),
        ("if (thread_index_in_threadgroup == 0) tokens", "tokens", 1),
        ("found == vocabulary ? best[row] : found", "found", 1),
        (" - normaliser[row]", "", 1),
    ],
    drawing.NOISE: [
        ("bool even = round % 2 == 0", "bool even = true", 1),
        ("high < count ? high : 0u", "high", 1),
        ("i < half_count ? pair.x : pair.y", "pair.x", 1),
        ("metal::min(int(number * float(vocabulary)), vocabulary - 1)", "int(number)", 1),
    ],
    renewal.RENEW: [
        ("accepted[place] ? tokens[place] : noise[place]", "tokens[place]", 1),
        ("best[place] != best_before[place]", "best[place] == best_before[place]", 1),
        ("accepted[place] != accepted_before[place]", "accepted[place]", 1),
        ("metal::isfinite(entropy[place]) ? 0.0f", "metal::isnan(entropy[place]) ? 0.0f", 1),
        ("i == 0 ? sum / float(length) : sum", "sum", 1),
        ("if (thread_index_in_threadgroup == 0) {", "{", 1),
        ("i < length; i += THREADS", "i < THREADS; i += THREADS", 1),
    ],
    conditioning.PROBABILITIES: [
        ("cap == 0.0f ? raw", "false ? raw", 1),
        ("/ temperature", "", 1),
        (" + size_t(first)", "", 1),
        (" - normaliser[row]", "", 1),
    ],
    conditioning.SOFT_NORM: [
        ("if (c < D) {", "{", 1),
        ("values[i] = 0.0f;", "", 1),
        ("if (TWO) ", "", 1),
        ("if (c < D) normed", "normed", 1),
    ],
    conditioning.CONDITION: [
        *(("if (c < D) {", "{", number) for number in (1, 2)),
        ("values[i] = 0.0f;", "", 1),
        ("if (SIGNAL) ", "", 1),
        ("if (c < D) normed", "normed", 1),
    ],
    sparse.SURVIVORS: [
        ("cap == 0.0f ? raw", "false ? raw", 1),
        (" - depth", "", 1),
        ("if (start + e < vocabulary) {", "{", 1),
        (" - normaliser[row]", "", 1),
        ("logit >= least", "logit > least", 1),
        ("found + simd", "simd", 1),
        ("if (lane == 0) of_groups", "of_groups", 1),
        ("lane < THREADS / 32 ? of_groups[turn + lane] : 0", "of_groups[turn + lane]", 1),
        ("place += simd_broadcast(simd_prefix_exclusive_sum(of_group), ushort(group));", "", 1),
        ("found += simd_sum(of_group);", "", 1),
        ("turn = 32 - turn;", "", 1),
        ("survives[e] && place < K", "survives[e]", 1),
        ("} else if (start + e < vocabulary) {", "} else {", 1),
        (" * norms[start + e]", "", 1),
        ("place += survives[e] ? 1 : 0;", "", 1),
        ("metal::min(found, K)", "found", 1),
        ("if (lane == 0) partial", "partial", 1),
        ("lane < simdgroups ? partial[lane] : 0.0f", "partial[lane]", 1),
        ("if (thread_index_in_threadgroup == 0) {", "{", 1),
        ("metal::isfinite(normaliser[row]) ? 1.001f * dropped : NAN", "1.001f * dropped", 1),
    ],
    sparse.SUM: [
        ("j < counts[row]", "j < K", 1),
        ("if (column + i < D) sums", "sums", 1),
        ("if (column + i < D) soft", "soft", 1),
        ("own = simd_sum(own);", "", 1),
        ("if (thread_index_in_simdgroup == 0) {", "{", 1),
        ("threads_per_grid.x / 32", "1", 1),
    ],
    sparse.SUM_PACKED: [
        ("j < counts[row]", "j < K", 1),
        ("if (word < uint(WORDS)) {", "{", 1),
        ("if (word < uint(WORDS)) soft", "soft", 1),
        ("word * EACH / GROUP", "word / GROUP", 1),
        ("(D / GROUP)", "D", 1),
        (" & MASK", "", 1),
        ("BITS * i", "i", 1),
        ("own = simd_sum(own);", "", 1),
        ("if (thread_index_in_simdgroup == 0) squares", "squares", 1),
        ("threads_per_grid.x / 32", "1", 1),
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
    expert_products.GATED["staged"]: [
        *_TILES,
        *_MULTIPLYING,
        *_STAGED,
        (
            "metal::min(columns + thread_index / 2 % 32, uint(F) - 1)",
            "(columns + thread_index / 2 % 32)",
            1,
        ),
        (" && column < uint(F)", "", 1),
    ],
    # The functions are those of the one above; here what its body does.
    expert_products.DOWN["staged"]: [
        *_STAGED,
        ("metal::min(columns + thread_index / 2, uint(N) - 1)", "(columns + thread_index / 2)", 1),
        (" && column < uint(N)", "", 1),
    ],
    # Tiles are found as above.
    expert_products.GATED["fragments"]: [
        *_MULTIPLYING,
        *_INPUTS,
        *_FRAGMENTS,
        ("metal::min(column, uint(F) - 1)", "column", 1),
        (" && column < uint(F)", "", 1),
    ],
    expert_products.DOWN["fragments"]: [
        *_FRAGMENTS,
        ("metal::min(column, uint(N) - 1)", "column", 1),
        ("metal::min(column + 32, uint(N) - 1)", "(column + 32)", 1),
        (" && at < uint(N)", "", 1),
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
# They add up once, and the first barrier of the sum is there for those that do again.
ONE_SUM = {conditioning.SOFT_NORM, sparse.SURVIVORS}


def barriers(kernel: Kernel) -> list[Mutant]:
    """One mutant for each barrier of the source that this kernel comes by."""
    text = "\0".join(dispatch.source(kernel))
    found = [] if kernel in WITHOUT_BARRIERS else _BARRIER.findall(text)
    mutants = [(old, "", 1 + found[:index].count(old)) for index, old in enumerate(found)]
    return mutants[1:] if kernel in ONE_SUM else mutants
