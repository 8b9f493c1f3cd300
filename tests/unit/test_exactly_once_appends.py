"""Producers, conditions and token at one log's sequencer, step by step.

What is refused, with what was expected, and when it may be said. Faults at large are
`test_exactly_once_world.py`'s. Source: docs/protocol/rest.md "Append", docs/protocol/errors.md,
docs/protocol/write.md "Exactly once".
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import Result, Stamp
from duramen.core.sequencer.log_state import LogState
from duramen.core.status import BookieStatus
from duramen.ids import Dlsn, EntryId, Epoch, lsn_of
from tests.unit.core_fakes import FakeStore
from tests.unit.exact_log import WAIT_US, Log
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import Driver


@pytest.mark.parametrize(
    ("stamp", "code", "expected"),
    [
        (Stamp("p", 1, 3), "producer_gap", 2),
        (Stamp("p", 2, 1), "producer_gap", 0),
        (Stamp("p", 0, 2), "producer_fenced", None),
        (Stamp("q", 0, 1), "producer_unknown", 0),
    ],
)
def test_what_does_not_follow_is_refused_once_it_is_proved(
    stamp: Stamp, code: str, expected: int | None
) -> None:
    log = Log()
    for sequence in (0, 1):
        log.append(Stamp("p", 1, sequence))
    number = log.append(stamp)
    assert log.fails() == []
    log.driver.store_all()
    assert log.fails() == [], "nothing that began after its arrival was acknowledged"
    assert log.take_lacs()
    (fail,) = log.driver.take(fx.Fail)
    assert (fail.append_id, fail.code, fail.field) == (number, code, "producer")
    assert fail.expected is not None and fail.expected.producer_seq == expected


@pytest.mark.parametrize(
    ("stamp", "code"),
    [
        (Stamp("p", 1, 1), ""),
        (Stamp("p", 1, 2), "data_lost"),
        (Stamp("p", 1, 9), "data_lost"),
        (Stamp("p", 0, 9), "producer_fenced"),
        (Stamp("p", 2, 0), ""),
        (Stamp("p", 2, 1), "producer_gap"),
    ],
)
def test_r15_after_a_loss_nothing_of_the_same_epoch_is_stored_or_new(
    stamp: Stamp, code: str
) -> None:
    log = Log()
    for sequence in (0, 1):
        log.append(Stamp("p", 1, sequence))
    log.store()
    log.done()
    log.driver.core.pipeline.admission.table.note_loss()
    number = log.append(stamp, match_seq_num=4)
    assert log.fails() == [], "a refusal is to be proved, this one as well"
    log.store()
    assert log.fails() == ([(number, code)] if code else [])
    assert [one for one, _, _ in log.done()] == ([] if code else [number])


def test_r15_a_batch_that_was_lost_between_others_is_told_so_while_others_are_in_flight() -> None:
    log = Log()
    for _ in range(3):
        log.append()
    log.store()
    log.done()
    table = log.driver.core.pipeline.admission.table
    place = Result(Dlsn(Epoch(1), EntryId(0), 0), 0, 2, 5)
    table.apply(Stamp("p", 0, 0), place, 0)
    table.apply(Stamp("p", 0, 2), place._replace(seq_num=4), 0)
    log.append(Stamp("p", 0, 3))
    log.append(Stamp("p", 0, 1))
    log.append(Stamp("p", 0, 2))
    log.store()
    assert log.fails() == [(5, "data_lost")]
    assert [(one, is_duplicate) for one, _, is_duplicate in log.done()] == [(6, True), (4, False)]
    log.append(Stamp("p", 1, 0))
    log.append(Stamp("p", 0, 1))
    log.store()
    assert log.fails() == [(8, "producer_fenced")]


def test_an_append_that_follows_is_a_proof_as_well() -> None:
    log = Log()
    log.append(match_seq_num=5)
    log.append()
    log.driver.take(fx.SendLac)
    log.driver.store_all()
    assert log.fails() == [(1, "condition_failed")]


def test_a_condition_counts_what_is_queued_ahead_in_the_same_entry() -> None:
    log = Log()
    for _ in range(4):
        log.append()
    log.append()
    held = [log.append(match_seq_num=seq) for seq in (10, 12, 10)]
    log.store()
    assert log.fails() == [(held[2], "condition_failed")]
    assert [seq for _, seq, _ in log.done()] == [0, 2, 4, 6, 8, 10, 12]


def test_a_txid_below_the_greatest_is_refused_and_an_equal_one_is_not() -> None:
    log = Log()
    log.append(min_txid=4, max_txid=9)
    log.append(min_txid=8, max_txid=20)
    log.append(min_txid=9, max_txid=9)
    log.store()
    (fail,) = log.driver.take(fx.Fail)
    assert (fail.append_id, fail.code, fail.field) == (2, "condition_failed", "txid")
    assert [number for number, _, _ in log.done()] == [1, 3]


def test_more_in_flight_than_results_are_kept_is_refused_at_once() -> None:
    store = FakeStore(make_log())
    config = store.log.config
    producers = config.producers.model_copy(update={"results_kept": 2})
    store.log = replace(store.log, config=config.model_copy(update={"producers": producers}))
    driver = Driver(store)
    driver.activate()
    log = Log(driver)
    for sequence in range(3):
        log.append(Stamp("p", 0, sequence))
    assert log.fails() == [(3, "window_full")]
    log.store()
    again = [log.append(Stamp("p", 0, sequence)) for sequence in range(3)]
    log.store()
    assert log.done() == [(1, 0, False), (2, 2, False), (4, 0, True), (5, 2, True), (6, 4, False)]
    assert again == [4, 5, 6]
    log.append(Stamp("p", 0, 0))
    assert [one.append_id for one in driver.take(fx.OldDuplicate)] == [7]


def test_a_duplicate_of_a_newer_epoch_does_not_meet_an_older_one() -> None:
    log = Log()
    log.append(Stamp("p", 0, 0))
    log.append(Stamp("p", 1, 0))
    log.append(Stamp("p", 1, 0))
    log.append(Stamp("p", 0, 0))
    log.store()
    assert log.done() == [(1, 0, False), (2, 2, False), (3, 2, True)]
    assert log.fails() == [(4, "producer_fenced")]


def test_what_waits_past_its_deadline_is_answered_once() -> None:
    log = Log()
    log.append(Stamp("p", 0, 0))
    log.append(Stamp("p", 0, 0))
    log.append(match_seq_num=99)
    log.driver.pass_time(WAIT_US)
    assert sorted(log.fails()) == [
        (1, "append_uncertain"), (2, "append_uncertain"), (3, "not_enough_bookies"),
    ]  # fmt: skip
    log.store()
    assert log.fails() == [] and log.done() == []
    log.append(Stamp("p", 0, 0))
    assert log.done() == [(4, 0, True)], "its late acknowledgement is remembered"


def test_r19_a_refusal_that_meets_a_close_is_judged_anew_in_the_next_epoch() -> None:
    log = Log()
    log.append(match_seq_num=7)
    log.driver.core.request_roll()
    log.driver.core.pump(0)
    assert log.driver.state() is LogState.CLOSING
    log.take_lacs()
    assert log.fails() == []
    log.driver.read()
    log.driver.commit()
    log.store()
    assert log.driver.state() is LogState.ACTIVE
    assert log.fails() == [(1, "condition_failed")]


def test_a_roll_keeps_the_producers_without_a_read_and_says_where_they_are_written() -> None:
    log = Log()
    log.append(Stamp("p", 0, 0))
    log.store()
    log.driver.core.request_roll()
    log.driver.core.pump(0)
    log.store()
    log.driver.read()
    log.driver.commit()
    assert log.driver.take(fx.ReadSegment) == []
    assert log.driver.store.log.snapshot_lsn == lsn_of(Epoch(1), EntryId(0))
    log.append(Stamp("p", 0, 0))
    assert log.done() == [(1, 0, False), (2, 0, True)]


def test_a_log_without_producers_says_so_when_it_is_closed() -> None:
    log = Log()
    log.append()
    log.store()
    log.driver.core.stop(0)
    log.driver.read()
    log.driver.commit()
    assert log.driver.store.log.snapshot_lsn == (2 << 32) - 1
    log.driver.core.take_over(0)
    log.driver.read()
    log.driver.commit()
    assert log.driver.state() is LogState.ACTIVE and log.driver.take(fx.ReadSegment) == []


def test_a_refusal_that_meets_the_end_of_the_owner_goes_elsewhere() -> None:
    log = Log()
    log.append(match_seq_num=7)
    log.driver.core.stop(0)
    log.driver.read()
    log.driver.commit()
    assert log.driver.state() is LogState.IDLE and log.fails() == []
    assert [one.append_id for one in log.driver.take(fx.Yield)] == [1]


def test_a_log_that_is_not_ordered_takes_no_conditions() -> None:
    store = FakeStore(make_log())
    config = store.log.config.model_copy(update={"ack_mode": "out_of_order"})
    store.log = replace(store.log, config=config)
    driver = Driver(store)
    driver.activate()
    log = Log(driver)
    log.append(Stamp("p", 0, 0))
    log.append(max_txid=1)
    log.store()
    assert log.fails() == [(1, "needs_ordered")]
    assert [number for number, _, _ in log.done()] == [2]


@pytest.mark.parametrize("status", [BookieStatus.SEALED, BookieStatus.TIMEOUT])
def test_a_zombie_cannot_refuse(status: BookieStatus) -> None:
    log = Log()
    log.append(match_seq_num=7)
    log.take_lacs(status)
    log.driver.core.pump(log.driver.now_us)
    assert log.fails() == [] and log.driver.core.pipeline.admission.held_count == (
        status is BookieStatus.TIMEOUT
    )
