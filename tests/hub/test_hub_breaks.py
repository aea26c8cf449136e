"""hub.py: downloads that break off, and how the next run goes on from there."""

import pytest
from fake_hub import Faults, etag_of
from hub_runs import (
    FIRST,
    MODEL,
    NAME,
    SECOND,
    SMALL_BYTES,
    TOTAL,
    content_of,
    leave_partial,
    plans,
    progress,
)


def test_a_broken_download_goes_on_in_the_next_run(fake, resolve, cache):
    fake.add(NAME, MODEL)
    fake.faults.break_at[SECOND] = 123_456

    broken = resolve()
    assert broken["kind"] == "HubError"
    assert broken["error"].startswith(
        f"the download of `{NAME}` broke off at 123.5 kB of 500.0 kB of {SECOND}: the Hub at"
    )
    assert broken["hint"] == "run the same command again later; it goes on from there"
    partial = cache.partial(etag_of(SECOND, MODEL[SECOND]))
    assert partial.read_bytes() == MODEL[SECOND][:123_456]

    fake.faults = Faults()
    fake.forget_traffic()
    resumed = resolve()
    assert content_of(resumed) == MODEL
    assert fake.downloads == [f"{SECOND} bytes=123456-"]
    assert fake.sent == {SECOND: 500_000 - 123_456}
    assert plans(resumed)[0]["cached_bytes"] == TOTAL - 500_000 + 123_456
    assert progress(resumed)[0]["done_bytes"] == plans(resumed)[0]["cached_bytes"]
    assert not partial.exists()


def test_a_short_break_is_bridged(fake, resolve):
    fake.add(NAME, MODEL)
    fake.faults = Faults(break_at={SECOND: 200_000}, breaks_left=1)
    assert content_of(resolve()) == MODEL
    assert fake.downloads[-2:] == [SECOND, f"{SECOND} bytes=200000-"]


def test_ctrl_c_passes_and_leaves_what_arrived(fake, resolve, cache):
    fake.add(NAME, MODEL)
    interrupted = resolve(interrupt_at=SMALL_BYTES + 100_000)
    assert interrupted["kind"] == "KeyboardInterrupt"
    arrived = cache.partial(etag_of(FIRST, MODEL[FIRST])).stat().st_size
    assert arrived >= 100_000
    fake.forget_traffic()
    assert content_of(resolve()) == MODEL
    assert fake.downloads == [f"{FIRST} bytes={arrived}-", SECOND]


def test_a_server_without_ranges_costs_time_but_no_correctness(fake, resolve, cache):
    fake.add(NAME, MODEL)
    leave_partial(cache, FIRST, MODEL[FIRST][:1000])
    fake.faults.ignores_range = True
    assert content_of(resolve()) == MODEL
    assert f"{FIRST} bytes=1000-" in fake.downloads


@pytest.mark.parametrize("left", ["all of it", "too much"])
def test_a_partial_file_that_is_no_part_is_handled(left, fake, resolve, cache):
    fake.add(NAME, MODEL)
    leave_partial(cache, FIRST, MODEL[FIRST] + (b"more" if left == "too much" else b""))
    assert content_of(resolve()) == MODEL
    assert (FIRST in fake.downloads) == (left == "too much")


def test_damaged_weights_are_found_and_removed(fake, resolve, cache):
    fake.add(NAME, MODEL)
    fake.faults.damages.add(FIRST)
    damaged = resolve()
    assert damaged["error"] == f"{FIRST} of `{NAME}` arrived damaged and was removed"
    fake.faults = Faults()
    assert content_of(resolve()) == MODEL


def test_an_update_that_broke_off_leaves_the_old_version_usable(fake, resolve):
    fake.add(NAME, MODEL)
    old = resolve()
    fake.add(NAME, MODEL | {SECOND: b"newer"})
    fake.faults.break_at[SECOND] = 1
    assert resolve()["kind"] == "HubError"
    assert resolve(offline=True)["path"] == old["path"]


def test_a_hub_that_falls_silent_is_a_break(fake, resolve):
    fake.add(NAME, MODEL)
    fake.faults.stall.add(SECOND)
    answer = resolve(env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"}, retry=[])
    assert f"broke off at 0 B of 500.0 kB of {SECOND}" in answer["error"]
