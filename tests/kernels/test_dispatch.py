"""The choice between kernel and twin: what is forced, switched off, tried and banned; sources."""

import logging
import re
from importlib.resources import files

import emulated
import kernel_mutants
import mlx.core as mx
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.kernels import dispatch, reference, routing

KERNELS = list(kernel_mutants.GUARDS)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@pytest.fixture
def scores() -> tuple[mx.array, mx.array, int]:
    return mx.random.normal((5, 8), key=mx.random.key(3)), mx.ones((8,)), 2


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """On a machine with Metal, as it were; what is launched there, by the emulator's twin."""
    names: list[str] = []

    def launch(request: dispatch.Launch) -> list[mx.array]:
        names.append(request.kernel.name)
        return list(reference.route(*request.inputs, dict(request.template)["K"]))

    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_launcher", launch)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    return names


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a Metal GPU")
def test_without_metal_the_twin_runs(scores, monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", lambda launch: pytest.fail("a kernel was launched"))
    for got, want in zip(kernels.route(*scores), reference.route(*scores), strict=True):
        assert mx.array_equal(got, want)


def test_what_is_forced_runs_through_the_given_launcher_and_only_inside(scores, monkeypatch):
    monkeypatch.setattr(dispatch, "on_metal", lambda: False)
    seen = []
    with (
        pytest.raises(KeyboardInterrupt),
        dispatch.forced(lambda launch: seen.append(launch) or list(reference.route(*scores))),
    ):
        kernels.route(*scores)
        raise KeyboardInterrupt
    kernels.route(*scores)
    assert [launch.kernel.name for launch in seen] == ["route"]


def test_an_operation_is_tried_once_for_each_kind_of_arguments(scores, launches):
    first, scale, top_k = scores
    kernels.route(first, scale, top_k)
    assert launches == ["route", "route"]  # the trial and the call
    kernels.route(first[:2], scale, top_k)
    assert launches == ["route"] * 3  # other numbers of tokens are the same kernel
    kernels.route(first, scale, 3)
    kernels.route(first.astype(mx.float16), scale, top_k)
    assert launches == ["route"] * 7


def test_how_many_tokens_there_are_is_no_other_kind_of_arguments():
    """Nor is it where a number for each token lies in one dimension."""
    rows = [mx.zeros((count, 128)) for count in (600, 32)]
    inverse, tokens = [mx.zeros((600,)), mx.zeros((32,))], [mx.zeros((1200,)), mx.zeros((64,))]
    kinds = [
        dispatch._kind((*each, (mx.ones((128,)), 1e-6)))
        for each in zip(rows, inverse, tokens, strict=True)
    ]
    assert kinds[0] == kinds[1] != dispatch._kind((mx.zeros((600, 64)), inverse[0], tokens[0]))
    assert dispatch._words((rows[0], inverse[0])) == "(float32(128,) float32)"


def test_kernels_of_long_prompts_are_tried_by_themselves(scores, monkeypatch, launches):
    tried = []
    monkeypatch.setattr(
        dispatch, "passes_trial", lambda operation, *arguments: tried.append(operation.name)
    )
    _, scale, top_k = scores
    for tokens in (routing.ONE_LAUNCH_TOKENS, routing.ONE_LAUNCH_TOKENS + 1, 1):
        kernels.route(mx.zeros((tokens, 8)), scale, top_k)
    assert tried == ["route", "route of a long prompt"]


def test_switched_off_the_twin_runs_untried(scores, launches, monkeypatch):
    monkeypatch.setenv(dispatch.SWITCH, "0")
    kernels.route(*scores)
    assert launches == []


def off_by_one(launch: dispatch.Launch) -> list[mx.array]:
    experts, *rest = reference.route(*launch.inputs, 2)
    return [experts + 1, *rest]


def not_a_number(launch: dispatch.Launch) -> list[mx.array]:
    experts, weights, *rest = reference.route(*launch.inputs, 2)
    return [experts, weights * float("nan"), *rest]


def failing(launch: dispatch.Launch) -> list[mx.array]:
    raise RuntimeError("[metal::Device] Unable to build metal library from source")


@pytest.mark.parametrize(
    ("launcher", "said"),
    [(off_by_one, "wrong here"), (not_a_number, "wrong here"), (failing, "Unable to build")],
)
def test_a_kernel_that_fails_its_trial_is_banned_with_one_warning(
    launcher, said, scores, launches, monkeypatch, caplog
):
    monkeypatch.setattr(dispatch, "_launcher", launcher)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            for got, want in zip(kernels.route(*scores), reference.route(*scores), strict=True):
                assert mx.array_equal(got, want)
    (record,) = caplog.records
    assert "route" in record.message and said in record.message


@pytest.mark.kernels
def test_the_real_kernel_passes_its_trial(scores, monkeypatch):
    monkeypatch.setattr(dispatch, "_launcher", emulated.run)
    assert dispatch.passes_trial(routing._ONE_LAUNCH, *scores)
    assert dispatch.passes_trial(routing._TWO_LAUNCHES, *scores)


# Sources --------------------------------------------------------------------------------------


@each_kernel
def test_the_header_table_lists_every_buffer_and_says_the_rules(kernel):
    header, _ = dispatch.source(kernel)
    table = header.rsplit("#line", 1)[1]
    for name in kernel.inputs + kernel.outputs:
        assert re.search(rf"^//   (?:in |out|   )  {name} ", table, re.MULTILINE), name
    for word in ("Twin: ", "template ", "grid ", "memory ", "ties"):
        assert word in table, word


@each_kernel
def test_line_directives_point_at_the_real_lines(kernel):
    text = "\n".join(dispatch.source(kernel))
    for first, name, part in re.findall(
        r'#line (\d+) "(\w+\.metal)"\n(.*?)(?=#line|\Z)', text, re.S
    ):
        real = files("mlx_diffusiongemma.metal").joinpath(name).read_text().splitlines()
        start = int(first) - 1
        part = part.rstrip("\n").splitlines()
        assert part == real[start : start + len(part)]


def test_every_metal_file_belongs_to_a_kernel():
    used = {kernel.name for kernel in KERNELS} | {name for k in KERNELS for name in k.functions}
    on_disk = {path.name for path in files("mlx_diffusiongemma.metal").iterdir()}
    assert {f"{name}.metal" for name in used} == {n for n in on_disk if n.endswith(".metal")}


def test_a_file_without_a_body_is_no_kernel():
    with pytest.raises(ValueError, match=r"routing_functions\.metal has no line // @body"):
        dispatch.source(dispatch.Kernel("routing_functions", (), ()))
