"""What runs on an NVIDIA GPU, on a machine that takes itself for one: choices, tuning, timing."""

import json
import logging

import mlx.core as mx
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.bench import kernel_times
from mlx_diffusiongemma.cli import bench_kernels
from mlx_diffusiongemma.kernels import choices, dispatch, expert_products, reference, tuning
from mlx_diffusiongemma.kernels.dispatch import Site

HALVES = mx.ones((3, 8)), mx.ones((3, 8))
SITE = "geglu float32(8,) float32(8,)"


@pytest.fixture
def launches(tmp_path, monkeypatch):
    """What is launched there, which the twin computes."""
    names = []

    def launch(request):
        names.append(request.kernel.name)
        return [reference.geglu(*request.inputs)]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    monkeypatch.setattr(dispatch, "on_cuda", lambda: True)
    monkeypatch.setattr(dispatch, "launch_on_cuda", launch)
    for name in ("_trials", "_chosen"):
        monkeypatch.setattr(dispatch, name, {})
    choices.forget()
    yield names
    choices.forget()


def test_a_kernel_runs_only_where_it_was_chosen(launches, monkeypatch):
    kernels.geglu(*HALVES)
    assert launches == [] and dispatch.trials() == {}
    dispatch._trials.clear()
    monkeypatch.setenv(choices.OVERRIDE, "geglu=custom")
    kernels.geglu(*HALVES)
    assert launches == ["geglu", "geglu"]  # the trial and the call


def test_a_chosen_kernel_that_fails_is_banned_with_one_warning(launches, monkeypatch, caplog):
    def failing(launch):
        raise RuntimeError("Failed to compile kernel")

    monkeypatch.setattr(dispatch, "launch_on_cuda", failing)
    monkeypatch.setenv(choices.OVERRIDE, "geglu=custom")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert mx.array_equal(kernels.geglu(*HALVES), reference.geglu(*HALVES))
    (record,) = caplog.records
    assert "kernel geglu fails" in record.message and "Failed to compile" in record.message


def test_products_with_experts_are_no_site(launches, monkeypatch):
    with dispatch.meeting() as met:
        dispatch._meet("gated_products", expert_products._GATED, HALVES)
    assert met == []
    monkeypatch.setattr(dispatch, "on_cuda", lambda: False)
    with dispatch.meeting() as met:
        dispatch._meet("gated_products", expert_products._GATED, HALVES)
    assert list(met[0].operations) == list(expert_products.WAYS)


def met_there() -> list[Site]:
    with dispatch.meeting() as met, dispatch.unlaunched():
        kernels.geglu(*HALVES)
    return met


def test_a_site_is_tuned_with_what_cuda_runs(launches):
    found = tuning.verdicts(met_there())
    assert list(found) == [SITE] and set(found[SITE].seconds) == {"stock", "custom"}
    assert launches and not found[SITE].banned
    choices.write(choices.default_path(), {SITE: found[SITE].as_fields() | {"choice": "custom"}})
    choices.forget()
    launches.clear()
    kernels.geglu(*HALVES)
    assert launches == ["geglu", "geglu"]


def test_bench_kernels_times_each_site_both_ways(launches, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernel_times, "released_sites", met_there)
    monkeypatch.setattr(bench_kernels, "check_backend", lambda: None)
    out = tmp_path / "times.json"
    bench_kernels.kernels_command(rounds=2, out=out)
    assert capsys.readouterr().out.startswith(f"{SITE}: ")
    found = json.loads(out.read_text())
    assert set(found["machine"]) == {"device", "system", "mlx", "kernels"} and found["rounds"] == 2
    assert set(found["sites"][SITE]["milliseconds"]) == {"stock", "custom"}
