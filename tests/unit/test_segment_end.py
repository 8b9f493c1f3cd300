"""How a segment ends: whose turn it is, what changes the configuration, what suspends a roll.

Directed tests of `RollQueue`, `Choice` and of `LogSequencer` around them; the plays with messages
are text scenarios (rolling_suspended, reconfiguration_…, next_ensemble_ahead). Source: R19.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from duramen.config import LogConfig, needs_new_segment, parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.proposals import choose_segment
from duramen.core.sequencer.roll_policy import RollQueue
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId
from duramen.limits import PROBE_INTERVAL_US, RETRY_DELAY_US
from duramen.units import MS, SECOND
from duramen.wire.entry import read_entry_info
from tests.unit.core_fakes import LOG_ID, FakeBookie, FakeStore
from tests.unit.sequencer_driver import Driver

OTHERS = [LogId(100 + i) for i in range(20)]


def config_of(**fields: Any) -> LogConfig:
    return parse_log_config(fields)


def driver_of(**fields: Any) -> Driver:
    driver = Driver(FakeStore(LogNode(LOG_ID, "ns", "log", config_of(**fields))))
    driver.activate()
    return driver


def report(driver: Driver, version: int, **fields: Any) -> None:
    driver.core.on_config(config_of(**fields), version, driver.now_us)
    driver.core.validate()


# --- Turns ---------------------------------------------------------------------------------------


def test_logs_roll_in_the_order_in_which_they_wanted_to_a_few_at_once() -> None:
    queue = RollQueue(limit=2)
    a, b, c, d = OTHERS[:4]
    assert [queue.enter(log) for log in (a, b, c, d)] == [True, True, False, False]
    assert queue.statistics() == {"rolling": 2, "waiting": 2}
    queue.leave(a)
    assert [queue.enter(log) for log in (d, c, b)] == [False, True, True]
    queue.leave(c)
    queue.leave(b)
    assert queue.enter(d) and queue.enter(a), "a may again, behind the others"
    queue.leave(d)
    queue.leave(a)
    queue.leave(a)
    assert queue.statistics() == {"rolling": 0, "waiting": 0}


def test_a_log_waits_for_its_turn_and_appends_go_on_meanwhile() -> None:
    driver = driver_of()
    for log in OTHERS:
        driver.context.rolls.enter(log)
    driver.core.request_roll()
    driver.append(1)
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.ACTIVE and driver.store_all() == [0]
    for log in OTHERS:
        driver.context.rolls.leave(log)
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.CLOSING and LOG_ID in driver.context.rolls
    driver.read()
    driver.commit()
    assert driver.state() is LogState.ACTIVE and LOG_ID not in driver.context.rolls


def test_a_quiet_log_that_waits_for_its_turn_asks_again_but_seldom_while_none_may_roll() -> None:
    driver = driver_of()
    for log in OTHERS:
        driver.context.rolls.enter(log)
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    assert driver.core.wakeup_at_us(driver.now_us) == driver.now_us + 100 * MS
    driver.context.is_rolling_suspended = True
    assert driver.core.wakeup_at_us(driver.now_us) == driver.now_us + 5 * SECOND
    driver.core.pump(driver.now_us)
    assert LOG_ID not in driver.context.rolls, "who may not roll holds nobody up"


@pytest.mark.parametrize("how", ["fenced", "released", "called off"])
def test_a_roll_that_ends_otherwise_gives_its_turn_back(how: str) -> None:
    driver = driver_of()
    driver.append(1)
    driver.core.pump(driver.now_us)
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.DRAINING and LOG_ID in driver.context.rolls
    match how:
        case "fenced":
            driver.store_all(BookieStatus.SEALED, only=("b0",))
        case "released":
            driver.core.release()
        case _:
            driver.pass_time(2 * SECOND)
    assert LOG_ID not in driver.context.rolls


def test_a_log_that_does_not_want_to_roll_any_more_leaves_the_queue() -> None:
    driver = driver_of(roll={"idle_close": "1s"})
    for log in OTHERS:
        driver.context.rolls.enter(log)
    driver.pass_time(SECOND)
    assert driver.state() is LogState.ACTIVE and LOG_ID in driver.context.rolls
    driver.append(1)
    driver.core.pump(driver.now_us)
    assert LOG_ID not in driver.context.rolls


# --- Configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_needed"),
    [
        ({"replication": {"ack_quorum": 3}}, True),
        ({"replication": {"placement": "prefer"}}, True),
        ({"replication": {"ensemble_size": 5}}, True),
        ({"retention": {"age": None}}, False),
        ({"window": {"entries": 7}}, False),
        ({"commit_delay": "50ms", "commit": "control"}, False),
        ({"flush": {"policy": "size"}, "roll": {"size": "1MiB"}}, False),
    ],
)
def test_only_how_entries_are_replicated_needs_a_new_segment(
    fields: dict[str, Any], *, is_needed: bool
) -> None:
    assert needs_new_segment(config_of(), config_of(**fields)) is is_needed
    driver = driver_of()
    driver.context.candidates = [FakeBookie(f"b{i}").candidate for i in range(5)]
    report(driver, 2, **fields)
    assert (driver.state() is LogState.CLOSING) is is_needed


def test_an_older_configuration_that_comes_late_changes_nothing() -> None:
    driver = driver_of()
    report(driver, 3, window={"entries": 7})
    report(driver, 2, replication={"ack_quorum": 3})
    assert driver.core.view is not None and driver.core.view.log.config.window.entries == 7
    assert driver.state() is LogState.ACTIVE


def test_a_window_that_is_made_smaller_holds_at_once() -> None:
    driver = driver_of()
    report(driver, 2, window={"entries": 1})
    driver.append(1)
    driver.append(2)
    assert [fail.append_id for fail in driver.take(fx.Fail)] == [2]


def test_news_of_a_claim_under_way_is_kept_and_rolls_the_segment_that_was_made_before() -> None:
    driver = Driver()
    driver.core.take_over(0)
    driver.read()
    report(driver, 2, replication={"ack_quorum": 3})
    driver.commit()
    assert driver.core.view is not None and driver.core.view.log.config_version == 2
    assert driver.state() is LogState.CLOSING


def test_a_smaller_roll_size_ends_the_open_segment() -> None:
    driver = driver_of()
    driver.append(1)
    driver.store_all()
    report(driver, 2, roll={"size": "1B"})
    assert driver.state() is LogState.CLOSING


def test_a_roll_size_of_nothing_rolls_segments_with_something_in_them() -> None:
    driver = driver_of(roll={"size": "0B"})
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.ACTIVE, "an empty segment would be rolled for ever"
    driver.append(1)
    driver.store_all()
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.CLOSING


# --- Where the next segment lies -----------------------------------------------------------------


def test_a_choice_holds_while_its_bookies_and_the_configuration_do() -> None:
    bookies = [FakeBookie(f"b{i}") for i in range(5)]
    candidates = [bookie.candidate for bookie in bookies]
    log = LogNode(LOG_ID, "ns", "log", config_of())
    choice = choose_segment(log, candidates, random.Random(1))
    assert choice is not None and choice.is_full and choice.fits(log, candidates)
    assert not choice.fits(log, [c for c in candidates if c.member != choice.ensemble[0]])
    changed = LogNode(LOG_ID, "ns", "log", config_of(replication={"ensemble_size": 4}))
    assert not choice.fits(changed, candidates)


def test_r20_a_choice_made_ahead_does_not_outlive_the_places_of_its_bookies() -> None:
    candidates = [FakeBookie(f"b{i}").candidate for i in range(3)]
    log = LogNode(LOG_ID, "ns", "log", config_of(replication={"min_racks": 2}))
    choice = choose_segment(log, candidates, random.Random(1))
    assert choice is not None and choice.fits(log, candidates)
    moved = [*candidates[:2], replace(candidates[2], rack=candidates[0].rack)]
    assert not choice.fits(log, moved)
    lax = LogNode(
        LOG_ID, "ns", "log", config_of(replication={"min_racks": 2, "placement": "prefer"})
    )
    choice = choose_segment(lax, moved, random.Random(1))
    assert choice is not None and choice.fits(lax, moved)


def test_a_choice_that_had_to_do_without_bookies_is_made_anew_when_more_come() -> None:
    bookies = [FakeBookie(f"b{i}") for i in range(3)]
    log = LogNode(LOG_ID, "ns", "log", config_of(replication={"placement": "prefer"}))
    two = [bookie.candidate for bookie in bookies[:2]]
    choice = choose_segment(log, two, random.Random(1))
    assert choice is not None and not choice.is_full and choice.fits(log, two)
    assert not choice.fits(log, [bookie.candidate for bookie in bookies])


def test_a_segment_goes_on_while_the_next_one_cannot_be_placed() -> None:
    """Regression: a roll for size closed a log of three bookies while one of them was away."""
    driver = driver_of(roll={"size": "1B"})
    everybody = driver.context.candidates
    driver.context.candidates = everybody[:2]
    driver.append(1)
    assert driver.store_all() == [0]
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.ACTIVE and LOG_ID not in driver.context.rolls
    driver.append(2)
    assert driver.store_all() == [1], "appends go on with the bookies that are there"
    driver.context.candidates = everybody
    driver.pass_time(5 * SECOND)
    assert driver.state() is LogState.CLOSING


def test_a_bookie_that_goes_while_a_segment_ends_calls_the_roll_off() -> None:
    driver = driver_of()
    driver.append(1)
    driver.store_all()
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    assert driver.state() is LogState.CLOSING
    everybody = driver.context.candidates
    driver.context.candidates = everybody[:2]
    driver.read()
    assert driver.state() is LogState.ACTIVE and driver.take(fx.Commit) == []
    driver.append(2)
    assert driver.store_all() == [1]
    driver.context.candidates = everybody
    driver.pass_time(5 * SECOND)
    driver.read()
    driver.commit()
    assert driver.core.roll_count == 1 and driver.state() is LogState.ACTIVE


def test_a_close_of_unknown_fate_is_not_called_off_for_want_of_bookies() -> None:
    driver = driver_of()
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    driver.read()
    driver.commit(CommitOutcome.UNKNOWN, applies=False)
    driver.context.candidates = driver.context.candidates[:2]
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    driver.commit()
    assert driver.state() is LogState.IDLE, "the first one may close the segment at any time"


def test_a_quiet_log_is_closed_wherever_the_next_segment_would_lie() -> None:
    driver = driver_of(roll={"idle_close": "1s"})
    driver.context.candidates = []
    driver.pass_time(SECOND)
    assert driver.state() is LogState.CLOSING


def test_who_holds_its_log_keeps_the_segment_open_while_nobody_appends() -> None:
    driver = Driver(FakeStore(LogNode(LOG_ID, "ns", "log", config_of(roll={"idle_close": "1s"}))))
    driver.context.holds_logs = True
    driver.activate()
    driver.pass_time(3 * SECOND)
    assert driver.state() is LogState.ACTIVE
    report(driver, 2, roll={"idle_close": "2s"})
    driver.pass_time(3 * SECOND)
    assert driver.state() is LogState.ACTIVE
    driver.core.request_roll()
    driver.core.pump(driver.now_us)
    assert driver.state() is not LogState.ACTIVE


# --- Suspended -----------------------------------------------------------------------------------


def test_a_suspended_ensemble_is_changed_once_rolling_is_resumed() -> None:
    driver = driver_of()
    driver.context.is_rolling_suspended = True
    driver.context.candidates = [*driver.context.candidates, FakeBookie("b3").candidate]
    driver.append(1)
    driver.take(fx.SendAdd)
    b2 = FakeBookie("b2").member
    driver.core.on_add(b2, Epoch(1), EntryId(0), BookieStatus.UNREACHABLE, driver.now_us)
    driver.pass_time(PROBE_INTERVAL_US)
    assert driver.take(fx.Commit) == [] and not driver.core.is_changing
    driver.context.is_rolling_suspended = False
    driver.core.on_add(b2, Epoch(1), EntryId(0), BookieStatus.UNREACHABLE, driver.now_us)
    driver.pass_time(PROBE_INTERVAL_US)
    assert driver.core.is_changing
    driver.commit()
    assert not driver.core.is_changing and driver.core.writer is not None
    assert "b3" in [m.bookie for m in driver.core.writer.segment.last_fragment.ensemble]


def test_suspended_no_segment_is_too_old_and_a_log_that_is_stopped_is_closed() -> None:
    driver = driver_of(roll={"interval": "1s", "idle_close": "10m"})
    driver.append(1)
    driver.store_all()
    driver.context.is_rolling_suspended = True
    driver.pass_time(10 * SECOND)
    assert driver.state() is LogState.ACTIVE
    driver.core.stop(driver.now_us)
    assert driver.state() is LogState.CLOSING


# --- Control entries -----------------------------------------------------------------------------


def test_a_control_entry_holds_no_record_and_is_not_followed_by_another() -> None:
    driver = driver_of(commit="control")
    driver.append(1)
    driver.store_all()
    driver.pass_time(SECOND)
    assert driver.take(fx.SendLac) == []
    adds = driver.take(fx.SendAdd)
    assert [add.entry for add in adds] == [1, 1, 1] and adds[0].lac == 0
    info = read_entry_info(adds[0].payload)
    assert info.is_control and info.record_count == 0 and info.first_position == 2
    for add in adds:
        driver.core.on_add(add.member, Epoch(1), EntryId(1), BookieStatus.OK, driver.now_us)
    for _ in range(3):
        driver.pass_time(SECOND)
    assert driver.take(fx.SendAdd) == [] and driver.take(fx.SendLac) == []
    driver.append(2)
    assert driver.store_all() == [2]
    (first, second) = driver.take(fx.Complete)
    assert (first.seq_num, second.seq_num, str(second.start)) == (0, 2, "e1n2s0")


def test_an_append_that_comes_first_carries_the_lac_itself() -> None:
    driver = driver_of(commit="control")
    driver.append(1)
    driver.store_all()
    driver.now_us += SECOND
    driver.append(2)
    driver.core.pump(driver.now_us)
    driver.core.on_timer(driver.now_us)
    (entries,) = {add.entry for add in driver.take(fx.SendAdd)}
    assert entries == 1 and driver.core.writer is not None and driver.core.writer.lap == 1
