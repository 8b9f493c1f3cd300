"""The end of a log in its sequencer: one `multi()` with the segment's close, or nothing at all.

Directed scenarios on the core with the driver of `test_log_sequencer`; told as stories in
`tests/scenario/end_of_*.txt`. Source: docs/protocol/retention.md "End of stream" and "Deletion".
"""

from __future__ import annotations

import pytest

from duramen.core.log_node import Ending
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.log_state import LogState
from duramen.ids import Epoch
from duramen.limits import RETRY_DELAY_US, ROLL_DRAIN_US
from tests.unit.sequencer_driver import Driver, codes


def is_over(driver: Driver, ending: Ending) -> bool:
    log = driver.store.log
    return log.is_ended if ending is Ending.END else log.is_deleted


@pytest.mark.parametrize("ending", list(Ending))
def test_the_log_ends_in_the_multi_that_closes_its_segment(ending: Ending) -> None:
    driver = Driver()
    driver.activate()
    driver.append(1)
    driver.core.pump(0)
    driver.core.finish(ending, 0)
    driver.append(2)
    assert driver.state() is LogState.DRAINING and not is_over(driver, ending)
    assert driver.store_all() == [0], "what came after is not sent any more"
    driver.read()
    commit = driver.commit()
    kinds = [type(write) for write in commit.writes]
    assert kinds == [fx.SetSegment, fx.SetLog, fx.ReplaceOwner], "no segment follows"
    assert driver.state() is LogState.IDLE and is_over(driver, ending)
    assert driver.store.segments[Epoch(1)][0].is_closed and driver.store.owner is None
    (given_back,) = driver.take(fx.Yield)
    assert given_back.append_id == 2


@pytest.mark.parametrize("ending", list(Ending))
def test_appends_are_refused_by_whoever_reads_the_log_after_its_end(ending: Ending) -> None:
    driver = Driver()
    driver.activate()
    driver.core.finish(ending, 0)
    driver.read()
    driver.commit()
    driver.core.take_over(0)
    driver.append(1)
    driver.read()
    assert codes(driver) == [(1, "log_ended" if ending is Ending.END else "log_deleted")]
    assert driver.state() is LogState.IDLE


def test_a_deletion_notes_its_time() -> None:
    driver = Driver()
    driver.activate()
    driver.context.unix_offset_us = 5_000_000
    driver.core.finish(Ending.DELETE, 0)
    driver.read()
    driver.commit()
    assert driver.store.log.deleted_unix_ms == 5_000


def test_a_window_that_does_not_drain_calls_the_end_off() -> None:
    driver = Driver()
    driver.activate()
    driver.append(1)
    driver.core.pump(0)
    driver.core.finish(Ending.END, 0)
    driver.pass_time(ROLL_DRAIN_US)
    assert driver.state() is LogState.ACTIVE
    assert driver.store_all() == [0]
    driver.append(2)
    assert driver.store_all() == [1]
    driver.core.stop(driver.now_us)
    driver.read()
    driver.commit()
    assert not driver.store.log.is_ended, "a later close is only a close"


def test_an_end_that_comes_while_the_log_is_taken_over_takes_effect_when_it_is() -> None:
    driver = Driver()
    driver.core.take_over(0)
    driver.core.finish(Ending.END, 0)
    driver.read()
    driver.commit()
    driver.read()
    driver.commit()
    assert driver.state() is LogState.IDLE and driver.store.log.is_ended


def test_an_end_that_comes_after_the_closing_multi_of_a_roll_ends_the_next_epoch() -> None:
    driver = Driver()
    driver.activate()
    driver.core.request_roll()
    driver.core.pump(0)
    driver.read()
    driver.core.finish(Ending.END, 0)
    driver.commit()
    assert driver.store.log.next_epoch == 3 and not driver.store.log.is_ended
    driver.read()
    driver.commit()
    assert driver.store.log.is_ended and driver.store.log.last_clean_epoch == 2


def test_an_end_of_unknown_fate_is_known_by_its_nonce() -> None:
    driver = Driver()
    driver.activate()
    driver.core.finish(Ending.END, 0)
    driver.read()
    driver.commit(CommitOutcome.UNKNOWN)
    driver.append(1)
    assert driver.state() is LogState.CLOSING and driver.take(fx.SendAdd) == []
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    assert driver.state() is LogState.IDLE and driver.store.log.is_ended


def test_an_end_that_was_not_applied_is_tried_again() -> None:
    driver = Driver()
    driver.activate()
    driver.core.finish(Ending.END, 0)
    driver.read()
    driver.commit(CommitOutcome.UNKNOWN, applies=False)
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    driver.commit()
    assert driver.state() is LogState.IDLE and driver.store.log.is_ended


def test_with_nothing_open_there_is_nothing_to_close() -> None:
    driver = Driver()
    driver.core.finish(Ending.END, 0)
    assert driver.state() is LogState.IDLE and driver.core.take_effects() == []
