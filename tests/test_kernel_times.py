"""`bench kernels`: the sites of the released model, and the report on candidates that are false."""

import mlx.core as mx
import pytest

from mlx_diffusiongemma.bench import kernel_times
from mlx_diffusiongemma.kernels import tuning
from mlx_diffusiongemma.kernels.choices import STOCK


@pytest.fixture(scope="module")
def sites():
    return {site.name: site for site in kernel_times.released_sites()}


def test_the_sites_are_those_of_a_step_of_the_released_model(sites):
    operations = {name.partition(" ")[0] for name in sites}
    assert operations >= {
        *("route", "prepare_heads", "geglu", "geglu_halves", "add_attention", "add_feed_forward"),
        *("gated_products", "down_products", "logit_statistics", "draw_tokens", "renew"),
    }
    experts = [site for name, site in sites.items() if name.startswith("gated_products")]
    assert [list(site.operations) for site in experts] == [["staged", "fragments"]]
    x, packed, _ = experts[0].arguments
    assert x.shape == (256, 2816) and packed.weight.shape[:2] == (128, 1408)


def test_arguments_of_a_site_are_real_numbers_of_its_sizes(sites):
    (name,) = [name for name in sites if name.startswith("add_attention")]
    first, second = (tuning.candidates_of(sites[name], 2)[STOCK](number) for number in (0, 1))
    mx.eval(*first, *second)
    assert first[0].shape == (1, 256, 2816) and float(mx.max(mx.abs(first[0]))) > 0
    assert mx.array_equal(first[0], second[0])  # other arrays, the same numbers


def test_no_argument_is_a_placeholder_of_the_graph(sites):
    """The embedding and the head are large, and are arguments of no site."""
    for site in sites.values():
        mx.eval(*tuning._arrays(site.arguments))
    ((_, packed, _),) = [s.arguments for n, s in sites.items() if n.startswith("down_products")]
    assert float(mx.max(mx.abs(packed.scales))) > 0 and len(set(packed.weight[0, 0].tolist())) > 9
    (given,) = [s.arguments for n, s in sites.items() if n.startswith("add_feed_forward")]
    assert sorted(given[3].inverse.reshape(-1).tolist()) == list(range(2048))


def test_the_report_has_every_time_and_every_ban():
    now = [0.0]

    def taking(seconds, value=1.0):
        def run(number):
            now[0] += seconds
            return [mx.array([value])]

        return run

    sites = {
        "a": {"stock": taking(0.004), "custom": taking(0.002)},
        "b": {"stock": taking(0.001), "custom": taking(0.5, value=3.0)},
    }
    report = kernel_times.report(sites, rounds=3, clock=lambda: now[0])
    assert report["sites"]["a"]["milliseconds"] == {"stock": 4.0, "custom": 2.0}
    assert report["sites"]["b"] == {
        "choice": "stock",
        "milliseconds": {"stock": 1.0},
        "banned": {"custom": "is wrong"},
    }
    assert set(report["build"]) == {"mlx", "wheels", "has_nax", "architecture"}
    assert set(report["machine"]) == {"device", "system", "mlx", "kernels"}
    assert kernel_times.table(report["sites"]) == [
        "a: 4.000 ms, custom 0.50",
        "b: 1.000 ms, custom is wrong",
    ]
