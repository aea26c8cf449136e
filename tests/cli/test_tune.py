"""`dgemma-mlx tune` on a machine without Metal, and the file that it shows and forgets."""

import mlx.core as mx
import pytest

from mlx_diffusiongemma.kernels import choices, dispatch


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a Metal GPU")
def test_without_metal_there_is_nothing_to_tune(run_here):
    run = run_here("tune", fake=False)
    assert (run.code, run.out) == (0, "")
    assert "there is nothing to tune" in run.err and run.err.count("\n") == 1


def test_what_was_chosen_is_shown_and_forgotten(run_here):
    found = {"choice": "custom", "milliseconds": {"stock": 2.0, "custom": 1.5}, "banned": {}}
    choices.write(choices.default_path(), {"geglu float16[704]": found})
    run = run_here("tune", "--show", fake=False)
    assert run.out == "geglu float16[704]: custom (stock 2.0 ms, custom 1.5 ms)\n"
    assert run_here("tune", "--reset", fake=False).code == 0
    assert "nothing is chosen here" in run_here("tune", "--show", fake=False).out


def test_both_at_once_are_refused(run_here):
    run = run_here("tune", "--show", "--reset", fake=False)
    assert run.code == 1 and "both --show and --reset" in run.err


def test_where_every_kernel_fails_all_are_banned_and_the_rest_is_done(run_here, monkeypatch):
    """On a machine with Metal, as it were: every site of the demo is met."""

    def failing(launch):
        raise RuntimeError("[metal::Device] Unable to build metal library from source")

    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_launcher", failing)
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    run = run_here("tune", fake=False)
    assert run.code == 0, run.err
    sites = choices.read(choices.default_path())
    assert {site["choice"] for site in sites.values()} == {"stock"}
    assert all("Unable to build" in site["banned"]["custom"] for site in sites.values())
    names = {site.partition(" ")[0] for site in sites}
    assert {"route", "geglu", "prepare_heads", "add_attention", "add_feed_forward"} <= names
    assert run.out.count("\n") == len(sites)
