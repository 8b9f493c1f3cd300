"""What a sequencer remembers of its logs: bounded stories, and rates neither empty nor old.

Source: duramen_sequencer.ownership, docs/protocol/ownership.md.
"""

from __future__ import annotations

import pytest

from duramen.ids import LogId
from duramen.runtime.sequencer import loads, story
from duramen.runtime.sequencer.loads import WINDOW_US, KnownRates, LoadMeter
from duramen.runtime.sequencer.story import Stories
from duramen.units import SECOND

LOG = LogId(7)
WHEN = 29 * SECOND + 300_000


def test_appends_are_counted_by_the_region_that_they_came_from() -> None:
    meter = LoadMeter(0)
    assert meter.regions_per_s(0) == {}
    for at_us, region in ((0, "eu"), (WINDOW_US, "eu"), (WINDOW_US, "us"), (WINDOW_US, None)):
        meter.note(1, at_us, region)
    seconds = (2 * WINDOW_US - 1) / 1e6
    found = meter.regions_per_s(2 * WINDOW_US - 1)
    assert found == {"eu": pytest.approx(2 / seconds), "us": pytest.approx(1 / seconds)}
    assert meter.regions_per_s(9 * WINDOW_US) == {}
    for number in range(1_000):
        meter.note(1, 9 * WINDOW_US, f"region-{number}")
    assert len(meter.regions_per_s(9 * WINDOW_US)) == 16


def test_refused_appends_are_told_over_the_same_windows() -> None:
    meter = LoadMeter(0)
    for at_us in (0, WINDOW_US, WINDOW_US + 1):
        meter.note_refused(at_us)
    assert meter.refused_per_s(2 * WINDOW_US - 1) == pytest.approx(3 * 1e6 / (2 * WINDOW_US - 1))
    assert meter.refused_per_s(2 * WINDOW_US) == pytest.approx(2 * 1e6 / WINDOW_US)
    assert meter.refused_per_s(9 * WINDOW_US) == 0


def test_a_story_keeps_its_newest_events_and_a_process_its_latest_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(story, "EVENT_COUNT_MAX", 3)
    monkeypatch.setattr(story, "LOG_COUNT_MAX", 2)
    stories = Stories()
    for epoch in range(1, 6):
        stories.note(LOG, "claimed", epoch)
    assert [event["epoch"] for event in stories.report(LOG)] == [3, 4, 5]
    stories.note(LogId(8), "closed")
    stories.note(LOG, "given up", reason="why")
    stories.note(LogId(9), "closed")
    assert len(stories) == 2 and stories.report(LogId(8)) == []
    assert stories.report(LOG)[-1]["reason"] == "why" and "epoch" not in stories.report(LOG)[-1]


def test_of_many_reasons_the_first_are_told() -> None:
    assert story.format_reasons(["a", "b"]) == "a; b"
    assert story.format_reasons(list("abcdefg")) == "a; b; c; d; e; and 2 more"


def test_a_rate_is_that_of_the_last_two_windows() -> None:
    meter = LoadMeter(0)
    for now_us in range(0, 20 * SECOND, SECOND // 10):
        meter.note(100, now_us)
    appends_per_s, bytes_per_s = meter.rates(20 * SECOND)
    assert 9 <= appends_per_s <= 11 and bytes_per_s == 100 * appends_per_s
    assert meter.rates(20 * SECOND + WINDOW_US)[0] <= 6, "it fades"
    assert meter.rates(20 * SECOND + 4 * WINDOW_US)[0] == 0


def test_logs_of_one_pace_have_one_rate_whenever_they_began_and_after_a_standstill() -> None:
    """The process stood still for 7 s: windows of their own made these rates differ tenfold."""
    begun_us = (1 * SECOND, 2 * SECOND + 500_000, 4 * SECOND, 5 * SECOND + 900_000)
    meters = [LoadMeter(now_us) for now_us in begun_us]
    for now_us in (*range(6 * SECOND, 22 * SECOND, 30_000), *range(29 * SECOND, WHEN, 30_000)):
        for meter in meters:
            meter.note(100, now_us)
    assert len({meter.rates(WHEN) for meter in meters}) == 1
    assert meters[0].rates(WHEN)[0] > 0


def test_rates_of_logs_that_left_are_bounded_and_idle_ones_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loads, "_KNOWN_COUNT_MAX", 2)
    rates = KnownRates()
    for number in range(1, 5):
        rates.note(LogId(number), float(number))
    assert [rates.get(LogId(number)) for number in range(1, 5)] == [0.0, 0.0, 3.0, 4.0]
    rates.note(LogId(4), 0.0)
    assert rates.get(LogId(4)) == 0.0
