"""Sparse self-conditioning: never further off than its certificate, and dense where that fails."""

import emulated
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

import mlx_diffusiongemma as dg
from mlx_diffusiongemma import ConfigError, DenoisingStep, GenerationOptions
from mlx_diffusiongemma.kernels import Belief, Digest, Logits, dispatch, reference_sparse
from mlx_diffusiongemma.kernels.digest import ERROR_SHARE
from mlx_diffusiongemma.kernels.reference_sampler import logit_statistics
from mlx_diffusiongemma.model.layers import Embedding
from mlx_diffusiongemma.model.self_conditioning import soft_embedding
from mlx_diffusiongemma.model.sparse_conditioning import Digester, norms_of, table_of

V, D = 300, 64
STORY = "Tell me a story about a fox."
# Of a sum in float32 over probabilities whose logarithms are float32 numbers up to 64.
ROUNDING = 2e-5


def embedding(packing="none", spread=0.0, seed=0) -> nn.Module:
    """Rows whose lengths differ by up to exp(spread) either way."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(V, D)) * np.exp(rng.uniform(-spread, spread, size=(V, 1)))
    table = Embedding(V, D)
    table.weight = mx.array(numbers, mx.float32)
    how = {"affine": (64, 8), "mxfp8": (32, 8)}.get(packing)
    return table if how is None else table.to_quantized(*how, mode=packing)


def digest_of(rows, table, **scaling) -> tuple[Belief, Digest]:
    logits = Logits(mx.array(np.array(rows), mx.float32)[None], **scaling)
    statistics = logit_statistics(logits)
    packed = table_of(table)
    digest = Digester(packed, norms_of(packed), mx.float32)(logits, statistics).settled()
    return Belief(logits, statistics.normaliser, digest), digest


def exact(belief: Belief, table: nn.Module) -> np.ndarray:
    values = np.array(belief.logits.values()[0], dtype=np.float64)
    probs = np.exp(values - values.max(axis=-1, keepdims=True))
    numbers = np.array(table_of(table).rows(mx.arange(V)), dtype=np.float64)
    return probs / probs.sum(axis=-1, keepdims=True) @ numbers


def assert_certified(rows, table, **scaling) -> tuple[np.ndarray, np.ndarray]:
    """Returns errors and their bounds, as lengths."""
    belief, digest = digest_of(rows, table, **scaling)
    off = np.linalg.norm(np.array(digest.soft[0], np.float64) - exact(belief, table), axis=-1)
    bound = np.array(digest.error[0], np.float64)
    longest = float(mx.max(norms_of(table_of(table))))
    assert (off <= bound + ROUNDING * longest).all()
    lengths = np.sqrt(np.array(digest.squares[0], np.float64))
    missed = np.flatnonzero(~(bound <= ERROR_SHARE * lengths))
    assert list(digest.missed) == missed.tolist()
    return off, bound


def adversarial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    one_hot, peaks, forbidden = np.full(V, -100.0), np.full(V, -9.0), rng.normal(size=V)
    one_hot[77], peaks[[3, 299]], forbidden[::2] = 5.0, 1.0, -np.inf
    just_below = np.full(V, -10.001)
    just_below[5] = 0.0
    return {
        "flat": np.zeros(V),
        "one-hot": one_hot,
        "two equal peaks": peaks,
        "forbidden tokens": forbidden,
        "one token left": np.where(np.arange(V) == 9, 0.0, -np.inf),
        "heavy tail": -1.5 * np.log1p(np.arange(V)),
        "everything just below the border": just_below,
        "Gaussian": rng.normal(size=V) * 6,
    }


@pytest.mark.parametrize("packing", ["none", "affine", "mxfp8"])
@pytest.mark.parametrize("spread", [0.0, 6.0])
@pytest.mark.parametrize("room", [2048, 7])
def test_a_digest_is_within_its_certificate(monkeypatch, packing, spread, room):
    monkeypatch.setattr(reference_sparse, "MOST_SURVIVORS", room)
    table = embedding(packing, spread)
    _, bound = assert_certified(list(adversarial().values()), table)
    of = dict(zip(adversarial(), bound, strict=True))
    assert of["one token left"] == 0
    assert of["everything just below the border"] > 0
    assert (of["flat"] > 0) == (room == 7)


def test_the_certificate_is_reached_where_all_that_is_dropped_points_one_way():
    table = embedding()
    table.weight = mx.where(mx.arange(V)[:, None] == 5, 0.0, mx.ones((V, D)))
    off, bound = assert_certified([adversarial()["everything just below the border"]], table)
    assert off[0] > 0.99 * bound[0] > 0.05


def test_a_token_of_enormous_norm_that_is_dropped_is_not_forgotten():
    table = embedding()
    table.weight[11] = 1e6 * mx.ones((D,))
    rows = np.full((2, V), -12.0)
    rows[:, 5], rows[1, 11] = 0.0, -np.inf
    off, bound = assert_certified(rows, table)
    assert off[0] > 40
    assert bound[1] < 0.1


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.0, 30.0),
    st.floats(0.0, 4.0),
    st.floats(0.3, 2.0),
    st.sampled_from(["none", "affine"]),
)
def test_any_row_is_within_its_certificate(seed, height, spread, temperature, packing):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(4, V)) * height
    rows[rng.uniform(size=rows.shape) < 0.1] = -np.inf
    assert_certified(rows, embedding(packing, spread, seed % 7), cap=30.0, temperature=temperature)


def test_a_row_that_is_no_number_misses_the_certificate():
    rows = np.zeros((3, V))
    rows[0, 1] = np.nan
    rows[1] = -np.inf
    _, digest = digest_of(rows, embedding())
    assert digest.missed == (0, 1)


# Rows that miss the certificate -------------------------------------------------------------------


def rows_of(kinds: str) -> np.ndarray:
    """`.` for a row whose digest suffices, `x` for one that needs all tokens."""
    rng = np.random.default_rng(4)
    sharp = np.where(np.arange(V) == 9, 0.0, -20.0 + 0.1 * rng.normal(size=V))
    flat = np.where(np.arange(V) == 9, 0.0, -10.5 + 0.1 * rng.normal(size=V))
    return np.array([flat if kind == "x" else sharp for kind in kinds])


@pytest.mark.parametrize("packing", ["none", "affine", "mxfp8"])
@pytest.mark.parametrize("kinds", ["." * 16, "x" + "." * 15, "......x........x", "." * 15 + "x"])
@pytest.mark.parametrize("at_a_time", [V, 200])
def test_only_rows_that_miss_it_are_computed_from_all_tokens(
    monkeypatch, packing, kinds, at_a_time
):
    monkeypatch.setattr("mlx_diffusiongemma.model.self_conditioning._TOKENS_AT_A_TIME", at_a_time)
    table = embedding(packing)
    belief, digest = digest_of(rows_of(kinds), table)
    assert digest.missed == tuple(i for i, kind in enumerate(kinds) if kind == "x")
    dense = np.array(sum(soft_embedding(belief._replace(digest=None), table, mx.float32)))[0]
    got = np.array(sum(soft_embedding(belief, table, mx.float32)))[0]
    for row, kind in enumerate(kinds):
        np.testing.assert_allclose(got[row], dense[row] if kind == "x" else digest.soft[0, row])
        apart = np.abs(np.array(digest.soft[0, row]) - dense[row]).max()
        assert apart > 1e-4 or kind == "."


def test_a_canvas_with_many_of_them_is_computed_as_without_digests():
    table = embedding()
    belief, digest = digest_of(rows_of("xxx............."), table)
    assert len(digest.missed) == 3
    dense = soft_embedding(belief._replace(digest=None), table, mx.float32)
    got = soft_embedding(belief, table, mx.float32)
    assert [part.tolist() for part in got] == [part.tolist() for part in dense]


def test_a_shorter_canvas_keeps_what_it_knows():
    belief, digest = digest_of(rows_of("...x......x....."), embedding())
    short = belief.first(8).digest
    assert (digest.missed, short.missed) == ((3, 10), (3,))
    assert short.soft.tolist() == digest.soft[:, :8].tolist()


# Generation ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime():
    return dg.load("demo")


def fast(**asked) -> GenerationOptions:
    return GenerationOptions(fast_self_conditioning=True, seed=1, **asked)


def counted(monkeypatch) -> list[int]:
    """Whatever is digested from now on adds its number of positions."""
    sizes, digest = [], Digester.__call__

    def call(self, logits, statistics):
        sizes.append(statistics.best.size)
        return digest(self, logits, statistics)

    monkeypatch.setattr(Digester, "__call__", call)
    return sizes


def test_it_is_off_unless_it_is_asked_for(runtime, monkeypatch):
    sizes = counted(monkeypatch)
    runtime.generate(STORY, GenerationOptions(seed=1, max_tokens=32))
    assert sizes == []
    result = runtime.generate(STORY, fast(max_tokens=32))
    assert sizes == [32] * sum(result.stats.denoising_steps)


def test_the_demo_writes_what_it_writes_with_dense_conditioning(runtime):
    for prompt in (STORY, "What is 7 + 8?"):
        dense = runtime.generate(prompt, GenerationOptions(seed=1, max_tokens=64))
        assert runtime.generate(prompt, fast(max_tokens=64)).text == dense.text


def test_where_nothing_is_certified_every_step_is_that_of_dense_conditioning(runtime, monkeypatch):
    monkeypatch.setattr("mlx_diffusiongemma.kernels.digest.ERROR_SHARE", -1.0)

    def steps(options):
        return [
            (event.argmax_canvas.tolist(), event.entropy.tolist())
            for event in runtime.stream(STORY, options)
            if isinstance(event, DenoisingStep)
        ]

    assert steps(fast(max_tokens=32)) == steps(GenerationOptions(seed=1, max_tokens=32))


def test_batches_sessions_constraints_and_shorter_canvases_go_with_it(runtime, monkeypatch):
    sizes = counted(monkeypatch)
    alone = runtime.generate(STORY, fast(max_tokens=40)).text
    together = runtime.generate_batch([STORY, "2 + 2 ="], fast(max_tokens=40))
    assert together[0].text == alone
    assert runtime.session().generate(STORY, fast(max_tokens=40)).text == alone
    chosen = dg.CanvasConstraint.regex("(yes|no)")
    assert runtime.generate("2 + 2 =", fast(constraint=chosen)).text in ("yes", "no")
    before = len(sizes)
    runtime.generate("2 + 2 =", fast(shrink_canvas=True, canvas_length=32))
    assert len(sizes) > before


@pytest.mark.kernels
@pytest.mark.parametrize("certified", [True, False])
def test_kernels_write_what_their_twins_write(runtime, monkeypatch, certified):
    if not certified:
        monkeypatch.setattr("mlx_diffusiongemma.kernels.digest.ERROR_SHARE", 1e-7)
    options = fast(max_tokens=16, canvas_length=16, max_denoising_steps=4)
    launched = set()

    def run(launch):
        launched.add(launch.kernel.name)
        return emulated.run(launch, "fast")

    with dispatch.forced(run):
        text = runtime.generate(STORY, options).text
    assert {"survivors", "sum_survivors"} <= launched
    assert ("probabilities" in launched) == (not certified)
    assert text == runtime.generate(STORY, options).text


def test_left_to_right_does_not_read_it():
    with pytest.raises(ConfigError, match="fast_self_conditioning is True and mode is 'ar'"):
        GenerationOptions(fast_self_conditioning=True, mode="ar")
