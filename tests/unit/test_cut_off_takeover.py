"""A takeover that bookies do not let go on: the nodes are read again, and what they say is done.

Whoever recovers or rebuilds is asked for nothing by anybody while bookies are silent: another may
have closed the epochs and gone on long ago. Each state in which a takeover may be stuck is taken in
turn. Source: docs/protocol/ownership.md "A takeover that is stuck", docs/protocol/recovery.md
"Takeover".
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.core.segment import SegmentState, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.recovery import RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Lsn
from duramen.limits import RETRY_BACKOFF, TAKEOVER_LOOK_US
from tests.unit.cut_off import take_over_until
from tests.unit.recovery_driver import Driver as RecoveryDriver
from tests.unit.sequencer_driver import OK, OTHER, Driver

STUCK = (RecoveryState.SEAL, RecoveryState.READ, RecoveryState.WRITE_BACK)


def go_on_elsewhere(taker: Driver) -> None:
    """Another sequencer seals and closes all that is there, and has the log."""
    pending_owner = Driver(taker.store, OTHER)
    pending_owner.core.take_over(0)
    pending_owner.read()
    pending_owner.commit()
    while pending_owner.core.state not in (LogState.ACTIVE, LogState.REBUILDING):
        for mark in pending_owner.take(fx.Commit):
            assert pending_owner.store.commit(mark.writes, pending_owner.name)
            pending_owner.core.on_commit(mark.token, CommitOutcome.APPLIED, pending_owner.now_us)
        for seal in pending_owner.take(fx.SendSeal):
            pending_owner.core.on_seal(
                seal.member, seal.epoch, OK, NOTHING, NOTHING, pending_owner.now_us
            )
        for read in pending_owner.take(fx.SendRecoveryRead):
            pending_owner.core.on_read(
                read.member, Epoch(read.ledger_id & 0xFFFF_FFFF), read.entry,
                BookieStatus.NO_ENTRY, None, pending_owner.now_us,
            )  # fmt: skip
        for asked in pending_owner.take(fx.ReadMetadata):
            pending_owner.core.on_metadata(
                asked.token, pending_owner.store.view(), pending_owner.now_us
            )


@pytest.mark.parametrize("state", STUCK)
def test_a_recoverer_learns_that_another_has_the_log(state: RecoveryState) -> None:
    taker = take_over_until(state)
    go_on_elsewhere(taker)
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.state() is LogState.IDLE
    assert [effect.append_id for effect in taker.take(fx.Yield)] == [1], "it waits for nobody here"
    assert taker.core.loss_count == 1


@pytest.mark.parametrize("state", STUCK)
def test_a_recoverer_goes_on_with_what_another_closed_for_it(state: RecoveryState) -> None:
    taker = take_over_until(state)
    segment, version = taker.store.segments[Epoch(1)]
    closed = segment.closed(
        last_entry=NOTHING, totals=Totals(), start_seq_num=0, completed_unix_ms=0, nonce="n",
        holes=(), fragments=segment.fragments,
    )  # fmt: skip
    log = taker.store.log.with_clean(closed, "n").with_stateless()
    writes = (fx.SetSegment(closed, version), fx.SetLog(log, taker.store.log_version))
    assert taker.store.commit(writes, OTHER)
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.state() is LogState.ACTIVE
    assert [add.entry for add in taker.take(fx.SendAdd)][:1] == [0]


@pytest.mark.parametrize("state", STUCK)
def test_a_recoverer_that_nobody_overtook_goes_on_where_it_was(state: RecoveryState) -> None:
    taker = take_over_until(state)
    recovery = taker.core.recovery
    for _ in range(3):
        taker.pass_time(TAKEOVER_LOOK_US)
        taker.read(fails=True)
        taker.pass_time(TAKEOVER_LOOK_US)
        taker.read()
    assert recovery is not None and taker.core.recovery is recovery
    assert (taker.state(), recovery.state) == (LogState.RECOVERING, state)
    assert not taker.take(fx.Yield)


def test_a_look_at_the_nodes_is_forgotten_once_the_log_is_active() -> None:
    taker = take_over_until(RecoveryState.READ)
    taker.pass_time(TAKEOVER_LOOK_US)
    (look,) = taker.take(fx.ReadMetadata)
    before = taker.store.view()
    (read, *_) = taker.take(fx.SendRecoveryRead)
    for member in taker.store.segments[Epoch(1)][0].last_fragment.ensemble:
        taker.core.on_read(
            member, Epoch(1), read.entry, BookieStatus.NO_ENTRY, None, taker.now_us
        )  # fmt: skip
    taker.commit()
    taker.read(replace(taker.store.view(), log=taker.store.log.with_stateless()))
    assert taker.state() is LogState.ACTIVE
    taker.core.on_metadata(look.token, before, taker.now_us)
    taker.pass_time(TAKEOVER_LOOK_US)
    assert taker.state() is LogState.ACTIVE
    assert not taker.take(fx.ReadMetadata)


@pytest.mark.parametrize("state", STUCK)
def test_a_claim_that_another_marked_is_followed_by_a_new_one(state: RecoveryState) -> None:
    """Who closes orphans may take it for one. Its mark has another nonce: the epoch is not ours."""
    taker = take_over_until(state)
    segment, version = taker.store.segments[Epoch(2)]
    assert segment.state is SegmentState.OPEN and taker.store.owner is not None
    assert taker.store.commit((fx.SetSegment(segment.marked("n"), version),), OTHER)
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    taker.commit()
    assert taker.state() is LogState.RECOVERING
    assert taker.store.log.next_epoch == 4, "epoch 2 is recovered as any other"


# --- Rebuilding ----------------------------------------------------------------------------------


def rebuild_epoch_one() -> Driver:
    """A taker that asks for the state of epoch 1, which is closed and holds entries."""
    taker = take_over_until(RecoveryState.WRITE_BACK)
    for add in taker.take(fx.SendAdd):
        taker.core.on_add(add.member, Epoch(1), add.entry, OK, taker.now_us)
    for read in taker.take(fx.SendRecoveryRead):
        for member in taker.store.segments[Epoch(1)][0].last_fragment.ensemble:
            taker.core.on_read(
                member, Epoch(1), read.entry, BookieStatus.NO_ENTRY, None, taker.now_us
            )
    taker.commit()
    taker.read()
    assert taker.state() is LogState.REBUILDING
    return taker


def test_who_rebuilds_learns_that_another_has_the_log() -> None:
    taker = rebuild_epoch_one()
    go_on_elsewhere(taker)
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.state() is LogState.IDLE
    assert [effect.append_id for effect in taker.take(fx.Yield)] == [1]


def test_a_rebuild_begins_anew_when_what_it_reads_is_given_up() -> None:
    taker = rebuild_epoch_one()
    (asked,) = taker.take(fx.ReadSegment)
    taker.core.on_segment(asked.token, None, taker.now_us)  # the node is gone
    log = replace(taker.store.log, first_live_epoch=Epoch(2), trim_lsn=Lsn(2 << 32))
    assert taker.store.commit((fx.SetLog(log, taker.store.log_version),), OTHER)
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.state() is LogState.ACTIVE, "nothing that is left has any state"


def test_a_rebuild_that_has_nothing_to_learn_goes_on() -> None:
    taker = rebuild_epoch_one()
    rebuild = taker.core.pipeline.carried.rebuild
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.core.pipeline.carried.rebuild is rebuild
    assert taker.state() is LogState.REBUILDING


def test_a_rebuild_ends_with_its_epoch_also_where_no_other_can_be_opened() -> None:
    """Another marked our epoch and is gone, and there are too few bookies for the next one."""
    taker = rebuild_epoch_one()
    (asked,) = taker.take(fx.ReadSegment)
    segment, version = taker.store.segments[Epoch(2)]
    assert taker.store.commit((fx.SetSegment(segment.marked("n"), version),), OTHER)
    everybody, taker.context.candidates = taker.context.candidates, []
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read()
    assert taker.state() is LogState.READING
    taker.core.on_segment(asked.token, None, taker.now_us)  # what was asked for the rebuild comes
    assert taker.state() is LogState.READING
    taker.context.candidates = everybody
    taker.core.on_bookies_changed(taker.now_us)
    taker.pass_time(RETRY_BACKOFF.limit_us)
    taker.read()
    taker.commit()
    assert taker.state() is LogState.RECOVERING and taker.store.log.next_epoch == 4


# --- Without ZooKeeper ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", STUCK)
def test_a_takeover_without_a_session_is_left_to_others(state: RecoveryState) -> None:
    taker = take_over_until(state)
    taker.context.is_metadata_reachable = False
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read(fails=True)
    assert taker.state() is LogState.IDLE
    assert [effect.append_id for effect in taker.take(fx.Yield)] == [1]


def test_a_claim_that_cannot_be_read_waits_for_a_session_where_nobody_else_may_claim() -> None:
    taker = take_over_until(RecoveryState.SEAL)
    taker.context.is_metadata_reachable, taker.context.holds_logs = False, True
    taker.pass_time(TAKEOVER_LOOK_US)
    taker.read(fails=True)
    assert taker.state() is LogState.RECOVERING


# --- A bound that another wrote ------------------------------------------------------------------


@pytest.mark.parametrize("is_found", [False, True])
def test_what_lies_above_a_bound_of_another_is_not_recovered(is_found: bool) -> None:
    driver = RecoveryDriver()
    core = driver.start()
    driver.commit()
    driver.seal("b0", "b1", "b2", highest=1)
    driver.answer(OK, 0)
    driver.write_back(0)
    if is_found:
        driver.answer(OK, 1)  # and its write-back is never answered
    segment, version = driver.store.segments[Epoch(1)]
    bounded = segment.bounded(EntryId(0), "another")
    assert driver.store.commit((fx.SetSegment(bounded, version),), OTHER)
    driver.take(fx.SendRecoveryRead)
    driver.take(fx.SendAdd)
    core.follow(driver.store.view(), driver.now_us)
    core.validate()
    driver.answer(OK, 0)
    driver.write_back(0)
    driver.commit()
    assert driver.closed.last_entry == 0


# --- A view from before our own change -----------------------------------------------------------


@pytest.mark.parametrize("needs_bound", [False, True])
def test_a_look_that_was_asked_for_before_our_mark_takes_nothing_back(needs_bound: bool) -> None:
    driver = RecoveryDriver()
    before = driver.store.view()
    core = driver.start(needs_bound=needs_bound)
    driver.commit()
    core.follow(before, driver.now_us)
    assert core.segment.state is SegmentState.IN_RECOVERY
    driver.seal("b0", "b1", "b2", highest=0)
    if needs_bound:
        driver.commit()
        core.follow(before, driver.now_us)
        assert core.is_bounded
    driver.answer(OK, 0)
    driver.write_back(0)
    if not needs_bound:
        driver.answer(BookieStatus.NO_ENTRY, 1)
        driver.answer(BookieStatus.NO_ENTRY, 1)
    driver.commit()
    assert driver.closed.last_entry == 0
