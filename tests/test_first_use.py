"""Kernels before a model's first text: timed once, remembered, tried, banned where they fail."""

import logging

import mlx.core as mx
import pytest

import mlx_diffusiongemma
from mlx_diffusiongemma import GenerationOptions, first_use
from mlx_diffusiongemma.kernels import choices, dispatch, tuning
from mlx_diffusiongemma.kernels.tuning import Verdict
from mlx_diffusiongemma.runtime import load_model

OPTIONS = GenerationOptions(max_tokens=32, seed=3)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A machine with Metal, as it were, on which no kernel compiles: what is launched there."""
    launched = []

    def failing(launch):
        launched.append(launch.kernel.name)
        raise RuntimeError("[metal::Device] Unable to build metal library from source")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_launcher", failing)
    for name in ("_trials", "_chosen"):
        monkeypatch.setattr(dispatch, name, {})
    choices.forget()
    yield launched
    choices.forget()


def forget_process() -> None:
    """As after a restart."""
    dispatch._trials.clear()
    dispatch._chosen.clear()
    choices.forget()


def test_the_sites_of_a_model_are_met_without_a_launch(gpu):
    model = load_model("demo")
    with dispatch.meeting() as met, dispatch.unlaunched():
        first_use.build_two_steps(model)
    names = {site.name.partition(" ")[0] for site in met}
    assert names >= {
        *("route", "geglu", "prepare_heads", "add_attention", "add_feed_forward"),
        *("logit_statistics", "draw_tokens", "noise_tokens", "accept_within_bound", "renew"),
        *("condition", "soft_norm", "probabilities", "gather_normed"),
    }
    assert any(site.name.startswith("route of a long prompt") for site in met)
    assert gpu == []


def test_kernels_that_fail_are_banned_before_the_first_text_with_one_warning(gpu, caplog):
    with caplog.at_level(logging.WARNING):
        runtime = mlx_diffusiongemma.load("demo")
    (record,) = caplog.records
    assert "kernels that fail here are not used" in record.message
    assert record.message.count("geglu float32") == 1 and "Unable to build" in record.message
    before = len(gpu)
    first = runtime.generate("hello", OPTIONS).text
    assert len(gpu) == before  # nothing of it is tried again
    sites = choices.read(choices.default_path())
    assert {site["choice"] for site in sites.values()} == {"stock"}
    forget_process()
    caplog.clear()
    again = mlx_diffusiongemma.load("demo")
    assert len(gpu) == before and not caplog.records  # the next process knows
    assert again.generate("hello", OPTIONS).text == first


def test_what_was_chosen_at_the_first_load_stays_chosen(gpu, monkeypatch):
    """A clock that would say otherwise the second time is not asked."""
    asked = []

    def tune(candidates, **how):
        asked.append(candidates)
        return Verdict("custom" if len(asked) % 2 else "stock", {"stock": 2.0, "custom": 1.0}, {})

    monkeypatch.setattr(tuning, "tune", tune)
    model = load_model("demo")
    first_use._measure_what_is_new(model)
    found = choices.read(choices.default_path())
    assert {site["choice"] for site in found.values()} == {"stock", "custom"}
    assert len(asked) == len(found) > 10
    forget_process()
    first_use._measure_what_is_new(model)
    assert len(asked) == len(found) and choices.read(choices.default_path()) == found


def test_a_site_that_a_model_brings_anew_is_measured_alone(gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(
        tuning, "tune", lambda *given, **how: asked.append(1) or Verdict("stock", {}, {})
    )
    model = load_model("demo")
    first_use._measure_what_is_new(model)
    found = choices.read(choices.default_path())
    kept = dict(list(found.items())[1:])
    choices.write(choices.default_path(), kept)
    asked.clear()
    first_use._measure_what_is_new(model)
    assert len(asked) == 1 and choices.read(choices.default_path()) == found


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_where_nothing_is_measured_kernels_are_tried_all_the_same(gpu, how, monkeypatch, caplog):
    if how == "environment":
        monkeypatch.setenv(first_use.SWITCH, "0")
    runtime = mlx_diffusiongemma.load("demo", measure=how == "environment")
    assert not choices.default_path().exists()
    before, warnings = len(gpu), len(caplog.records)
    assert before and set(dispatch.trials().values()) == {False}
    runtime.generate("hello", OPTIONS)
    assert (len(gpu), len(caplog.records)) == (before, warnings)


def test_without_a_file_nothing_that_was_measured_is_used(gpu, monkeypatch, caplog):
    """The next run would measure again, and might choose otherwise."""
    monkeypatch.setattr(choices, "write", lambda *given: (_ for _ in ()).throw(OSError("full")))
    monkeypatch.setattr(tuning, "tune", lambda *given, **how: Verdict("stock", {}, {}))
    first_use._measure_what_is_new(load_model("demo"))
    assert "cannot be remembered, and is not used: full" in caplog.text
    assert dispatch._choice("geglu", {}, (), "custom") == "custom"


def test_on_a_cpu_nothing_happens(monkeypatch):
    monkeypatch.setattr(first_use, "build_two_steps", lambda model: pytest.fail("it was built"))
    if mx.default_device() == mx.cpu:
        first_use.prepare(load_model("demo"))


def test_switched_off_nothing_happens(gpu, monkeypatch):
    monkeypatch.setenv(dispatch.SWITCH, "0")
    mlx_diffusiongemma.load("demo")
    assert gpu == [] and not choices.default_path().exists()
