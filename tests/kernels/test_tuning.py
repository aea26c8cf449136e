"""Tuning: what is measured and banned by a false clock, the file, and what dispatch makes of it."""

import json

import mlx.core as mx
import pytest

from mlx_diffusiongemma import kernels
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.kernels import choices, dispatch, reference, tuning

FIELDS = {"choice": "stock"}


class Clock:
    """Time passes only where a candidate lets it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def candidate(self, seconds, value=1.0):
        def run(number):
            self.now += seconds
            return [mx.full((4,), value) * mx.ones((4,))]

        return run


def failing(number):
    """As MLX fails: when the array is computed, not when it is made."""
    return [mx.array([[1.0, 2.0], [3.0, 4.0]]) @ mx.ones((3,))]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(choices.OVERRIDE, raising=False)
    choices.forget()
    yield tmp_path
    choices.forget()


@pytest.mark.parametrize(
    ("seconds", "choice"), [(0.98, "stock"), (0.96, "custom"), (0.97, "custom"), (1.5, "stock")]
)
def test_a_candidate_must_win_by_three_percent(seconds, choice):
    clock = Clock()
    candidates = {"stock": clock.candidate(1.0), "custom": clock.candidate(seconds)}
    verdict = tuning.tune(candidates, clock=clock)
    assert verdict.choice == choice
    assert verdict.seconds == pytest.approx({"stock": 1.0, "custom": seconds})


def test_of_several_right_candidates_the_fastest_wins_and_wrong_ones_are_banned():
    clock = Clock()
    candidates = {
        "stock": clock.candidate(1.0),
        "staged": clock.candidate(0.9),
        "fragments": clock.candidate(0.7),
        "wrong": clock.candidate(0.1, value=1.5),
        "nan": clock.candidate(0.1, value=float("nan")),
        "failing": failing,
    }
    verdict = tuning.tune(candidates, clock=clock)
    assert verdict.choice == "fragments"
    assert set(verdict.banned) == {"wrong", "nan", "failing"}
    assert verdict.banned["wrong"] == "is wrong"
    assert verdict.banned["failing"].startswith("fails: ")
    assert list(verdict.seconds) == ["stock", "staged", "fragments"]


def test_a_failure_that_only_evaluation_shows_is_banned(monkeypatch):
    clock, bad = Clock(), mx.array([7.0])
    real_eval = mx.eval

    def evaluate(*arrays):
        if any(array is bad for array in arrays):
            raise RuntimeError("[metal::Device] Unable to build metal library from source")
        real_eval(*arrays)

    monkeypatch.setattr(tuning.mx, "eval", evaluate)
    calls = {"stock": clock.candidate(1.0), "custom": lambda number: [bad]}
    verdict = tuning.tune(calls, clock=clock)
    assert verdict.choice == "stock" and "Unable to build" in verdict.banned["custom"]


def test_a_candidate_that_fails_while_it_is_timed_is_banned():
    clock, calls = Clock(), []

    def late(number):
        calls.append(number)
        return failing(number) if len(calls) > 3 else clock.candidate(0.1)(number)

    verdict = tuning.tune({"stock": clock.candidate(1.0), "custom": late}, clock=clock)
    assert verdict.choice == "stock" and set(verdict.banned) == {"custom"}


def test_candidates_take_turns_and_repetitions_differ():
    clock, order = Clock(), []

    def named(name):
        def run(number):
            order.append((number, name))
            return clock.candidate(1.0)(number)

        return run

    tuning.tune({name: named(name) for name in ("stock", "a", "b")}, rounds=3, clock=clock)
    assert order[3:] == [
        *((0, name) for name in ("stock", "a", "b")),
        *((1, name) for name in ("a", "b", "stock")),
        *((2, name) for name in ("b", "stock", "a")),
    ]


# The file -------------------------------------------------------------------------------------


def test_what_is_written_is_read_and_lies_in_the_cache_folder(cache_folder):
    path = choices.default_path()
    assert path.is_relative_to(cache_folder)
    choices.write(path, {"geglu float32[8]": FIELDS})
    choices.write(path, {"route": FIELDS})
    assert choices.read(path) == {"route": FIELDS}
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]
    assert set(json.loads(path.read_text())["machine"]) == {"device", "system", "mlx", "kernels"}


def test_a_write_that_fails_leaves_the_old_file(monkeypatch):
    path = choices.default_path()
    choices.write(path, {"route": FIELDS})

    def full(*names):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(choices.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        choices.write(path, {})
    assert choices.read(path) == {"route": FIELDS}
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sites": 3}', '{"format": 1, "sites": {"a": 1}}']
)
def test_a_damaged_file_is_ignored_with_one_note(text, caplog):
    path = choices.default_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for _ in range(3):
        assert choices.choice("route", "route", ("stock", "custom")) is None
    (record,) = caplog.records
    assert "is damaged" in record.message


@pytest.mark.parametrize("part", ["device", "system", "mlx", "kernels"])
def test_the_file_of_another_machine_or_version_is_ignored(part, caplog):
    path = choices.default_path()
    choices.write(path, {"route": FIELDS})
    found = json.loads(path.read_text())
    found["machine"][part] = "another"
    path.write_text(json.dumps(found))
    assert choices.read(path) == {}
    assert "another device, system, mlx" in caplog.text


# What dispatch makes of it --------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """On a machine with Metal, as it were; launches are computed by the twin."""
    names: list[str] = []

    def launch(request: dispatch.Launch) -> list[mx.array]:
        names.append(request.kernel.name)
        return [reference.geglu(*request.inputs)]

    monkeypatch.setattr(dispatch, "on_metal", lambda: True)
    monkeypatch.setattr(dispatch, "_launcher", launch)
    monkeypatch.setattr(dispatch, "_trials", {})
    monkeypatch.setattr(dispatch, "_chosen", {})
    monkeypatch.delenv(dispatch.SWITCH, raising=False)
    return names


HALVES = mx.ones((3, 8)), mx.ones((3, 8))


def test_a_site_for_which_stock_was_chosen_launches_nothing(launches):
    kernels.geglu(*HALVES)
    assert launches == ["geglu", "geglu"]  # trial and call
    dispatch._trials.clear()
    choices.write(choices.default_path(), {"geglu float32(8,) float32(8,)": FIELDS})
    choices.forget()
    kernels.geglu(*HALVES)
    assert len(launches) == 2
    kernels.geglu(mx.ones((3, 4)), mx.ones((3, 4)))  # another site
    assert len(launches) == 4


def test_by_hand_a_site_is_chosen_whatever_the_file_says(launches, monkeypatch):
    choices.write(choices.default_path(), {"geglu float32(8,) float32(8,)": FIELDS})
    monkeypatch.setenv(choices.OVERRIDE, "route=stock,geglu=custom")
    kernels.geglu(*HALVES)
    assert launches == ["geglu", "geglu"]


def test_a_choice_that_there_is_not_is_an_error(launches, monkeypatch):
    monkeypatch.setenv(choices.OVERRIDE, "geglu=fastest")
    with pytest.raises(ConfigError, match="DGEMMA_SITES chooses 'fastest' for geglu"):
        kernels.geglu(*HALVES)


def test_a_choice_is_looked_up_once_for_each_kind_of_arguments(launches, monkeypatch):
    asked = []
    monkeypatch.setattr(choices, "choice", lambda *given: asked.append(given))
    for _ in range(3):
        kernels.geglu(*HALVES)
    assert len(asked) == 1


def test_sites_that_are_met_can_be_tuned(launches):
    with dispatch.meeting() as sites:
        kernels.geglu(*HALVES)
    (site,) = sites
    candidates = tuning.candidates_of(site)
    assert list(candidates) == ["stock", "custom"]
    first, second = (candidates["custom"](number)[0] for number in (0, 1))
    assert first is not second
    assert tuning.tune(candidates, rounds=2).banned == {}
