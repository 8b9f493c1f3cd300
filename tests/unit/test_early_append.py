"""Early appends (`early_append`) and the recoveries beside them, rule by rule.

Every answer is given by hand. What many takeovers under faults leave behind: `core_world`; as
stories: `tests/scenario/early_append*.txt`. Source: docs/protocol/ownership.md "Early appends",
R12, R18.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.config import LogConfig
from duramen.core.log_node import Ending
from duramen.core.segment import Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, SequencerId
from duramen.limits import RETRY_DELAY_US
from duramen.units import SECOND
from tests.unit.core_fakes import FakeStore
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import ME, OK, OTHER, Driver, codes

DOUBTFUL = BookieStatus.UNKNOWN
THIRD = SequencerId("third")


class EarlyDriver(Driver):
    """A sequencer of a log with early appends; several recoveries may be under way at once.

    Bookies say that they saw entry 0 of every older epoch, which nobody has: it is looked for.
    """

    def commit_all(self) -> None:
        """Carry out every change that is proposed."""
        for commit in self.take(fx.Commit):
            applied = self.store.commit(commit.writes, self.name)
            outcome = CommitOutcome.APPLIED if applied else CommitOutcome.CONFLICT
            self.core.on_commit(commit.token, outcome, self.now_us)
            self.core.validate()

    def seal(self, *names: str, status: BookieStatus = OK) -> None:
        """Answer the seals of some bookies; those of the others are lost."""
        for seal in self.take(fx.SendSeal):
            if seal.member.bookie in names:
                self.core.on_seal(seal.member, seal.epoch, status, NOTHING, EntryId(0), self.now_us)
                self.core.validate()

    def close_older(self) -> None:
        """Read absences until every older epoch is closed, each time with the view after it."""
        while self.core.older.recoveries:
            for read in self.take(fx.SendRecoveryRead):
                epoch = Epoch(read.ledger_id & 0xFFFF_FFFF)
                self.core.on_read(
                    read.member, epoch, read.entry, BookieStatus.NO_ENTRY, None, self.now_us
                )
            self.commit_all()
            for asked in self.take(fx.ReadMetadata):
                self.core.on_metadata(asked.token, self.store.view(), self.now_us)
            self.core.validate()

    def claim(self) -> None:
        """Claim an epoch and mark every older one."""
        self.core.take_over(self.now_us)
        self.read()
        self.commit()
        self.commit_all()

    def ends(self) -> list[fx.Complete | fx.CompleteEarly]:
        """How appends were acknowledged."""
        return [*self.take(fx.CompleteEarly), *self.take(fx.Complete)]


def make_store(*, is_early: bool = True) -> FakeStore:
    """One epoch that a dead sequencer left."""
    log = make_log()
    config = log.config.model_copy(update={"early_append": is_early})
    store = FakeStore(replace(log, config=config))
    Driver(store, OTHER).activate()
    return store


def go_early(store: FakeStore | None = None) -> EarlyDriver:
    """A sequencer that has taken e2 and sealed and bounded e1."""
    driver = EarlyDriver(store or make_store())
    driver.claim()
    driver.seal("b0", "b1")
    driver.commit_all()
    assert driver.state() is LogState.EARLY
    return driver


def stamped(append_id: int) -> QueuedAppend:
    return QueuedAppend(append_id, b"append of p", 1, None, 5, 10 * SECOND, stamp=Stamp("p", 0, 0))


def test_a_plain_append_is_acknowledged_while_the_epoch_before_is_recovered() -> None:
    driver = go_early()
    driver.append(1)
    assert driver.store_all() == [0]
    assert driver.ends() == [fx.CompleteEarly(1, Dlsn(Epoch(2), EntryId(0), 0), 2, 5)]
    assert driver.store.log.last_clean_epoch == 0
    driver.close_older()
    driver.append(2)
    driver.store_all()
    (done,) = driver.take(fx.Complete)
    assert done.seq_num == 2 and driver.state() is LogState.ACTIVE


def test_what_was_sent_early_and_is_acknowledged_after_the_close_has_its_number() -> None:
    driver = go_early()
    driver.append(1)
    adds = driver.take(fx.SendAdd)
    driver.close_older()
    for add in adds:
        driver.core.on_add(add.member, Epoch(2), add.entry, OK, 0)
    assert [done.seq_num for done in driver.take(fx.Complete)] == [0]


@pytest.mark.parametrize("missing", ["cover", "bound", "certainty"])
def test_nothing_is_sent_before_the_epoch_before_is_sealed_and_bounded(missing: str) -> None:
    driver = EarlyDriver(make_store())
    driver.claim()
    driver.append(1)
    match missing:
        case "cover":
            driver.seal("b0")
        case "bound":
            driver.seal("b0", "b1")
        case _:
            # What is damaged may hide an acknowledged entry: nobody knows where e1 ends.
            driver.seal("b0", "b1", status=DOUBTFUL)
            driver.commit_all()
    assert driver.state() is LogState.RECOVERING and driver.take(fx.SendAdd) == []


def test_a_read_of_before_the_seal_does_not_outlive_it() -> None:
    """Seed 1240: its answer began a new epoch, and the end of the pause then took it for none."""
    driver = go_early()
    driver.append(1)
    adds = driver.take(fx.SendAdd)
    while driver.core.older.recoveries:
        for read in driver.take(fx.SendRecoveryRead):
            driver.core.on_read(read.member, Epoch(1), read.entry, BookieStatus.NO_ENTRY, None, 0)
        driver.commit_all()
    (asked,) = driver.take(fx.ReadMetadata)
    driver.core.on_add(adds[0].member, Epoch(2), adds[0].entry, BookieStatus.SEALED, 0)
    assert driver.state() is LogState.READING and codes(driver) == [(1, "append_uncertain")]
    driver.core.on_metadata(asked.token, driver.store.view(), driver.now_us)
    assert driver.take(fx.Commit) == [], "re-activation has a pause"
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    driver.commit_all()
    assert driver.state() is LogState.RECOVERING


def test_every_older_epoch_is_marked_and_sealed_in_one_round() -> None:
    store = make_store()
    EarlyDriver(store, THIRD).claim()
    driver = EarlyDriver(store)
    driver.core.take_over(0)
    driver.append(1)
    driver.read()
    driver.commit()
    assert len(driver.core.older.recoveries) == 2
    driver.commit_all()
    seals = driver.take(fx.SendSeal)
    assert sorted({seal.epoch for seal in seals}) == [1, 2]
    for seal in seals:
        if seal.epoch == 1:
            driver.core.on_seal(seal.member, seal.epoch, OK, NOTHING, NOTHING, 0)
    driver.commit_all()
    assert driver.state() is LogState.RECOVERING, "e2 is not sealed"


def test_what_needs_the_older_epochs_waits_in_its_order_and_plain_appends_pass_it() -> None:
    driver = go_early()
    driver.core.append(stamped(1), 0)
    conditional = QueuedAppend(2, b"append 2", 1, None, 5, 10 * SECOND, match_seq_num=1)
    driver.core.append(conditional, 0)
    driver.append(3)
    driver.store_all()
    assert [end.append_id for end in driver.ends()] == [3]
    assert driver.core.pipeline.early.held_count == 2
    driver.close_older()
    driver.store_all()
    # Three records of appends 3 and 1 are before it: the condition is judged where it stands.
    assert [end.append_id for end in driver.ends()] == [1]
    assert codes(driver) == [(2, "condition_failed")]


def test_what_waits_for_the_recovery_counts_in_the_window_and_expires() -> None:
    driver = go_early()
    driver.core.append(stamped(1), 0)
    driver.core.pump(0)
    assert driver.core.pipeline.held_count == 1
    assert driver.core.statistics()["waiting_for_recovery_count"] == 1
    assert driver.core.wakeup_at_us(0) is not None
    driver.pass_time(10 * SECOND)
    assert (1, "log_unavailable") in codes(driver)
    assert driver.core.pipeline.held_count == 0


def test_a_fifth_epoch_is_not_opened() -> None:
    store = make_store()
    for name in ("s2", "s3", "s4"):
        go_early_as(store, name)
    driver = EarlyDriver(store)
    driver.core.take_over(0)
    driver.append(1)
    driver.read()
    driver.commit_all()
    driver.seal("b0", "b1")
    driver.commit_all()
    assert store.log.next_epoch == 5 and driver.state() is LogState.RECOVERING
    assert driver.take(fx.SendAdd) == []


def go_early_as(store: FakeStore, name: str) -> None:
    driver = EarlyDriver(store, SequencerId(name))
    driver.claim()
    driver.seal("b0", "b1")
    driver.commit_all()
    assert driver.state() is LogState.EARLY


def test_an_early_owner_that_is_sealed_says_uncertain_and_begins_anew() -> None:
    driver = go_early()
    driver.append(1)
    driver.core.append(stamped(2), 0)
    driver.store_all(BookieStatus.SEALED, only=("b0",))
    assert codes(driver) == [(1, "append_uncertain")]
    assert driver.state() is LogState.READING and driver.core.older.recoveries == []
    assert [append.append_id for append in driver.core.pipeline._transmit.queue] == [2]


def test_an_early_owner_that_finds_a_newer_epoch_gives_the_log_up() -> None:
    driver = go_early()
    driver.core.append(stamped(1), 0)
    driver.core.pump(0)
    go_early_as(driver.store, "other")
    for _ in range(2):
        for read in driver.take(fx.SendRecoveryRead):
            driver.core.on_read(read.member, Epoch(1), read.entry, BookieStatus.NO_ENTRY, None, 0)
    driver.commit()
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    # e1 is as it was left, so that it is closed; then the newer epoch is seen.
    driver.commit()
    driver.read()
    assert [one.append_id for one in driver.take(fx.Yield)] == [1]
    assert driver.state() is LogState.IDLE


def test_a_stop_and_a_roll_wait_until_the_epoch_before_is_closed() -> None:
    driver = go_early()
    driver.core.request_roll()
    driver.append(1)
    driver.store_all()
    driver.core.stop(0)
    assert driver.state() is LogState.EARLY and not driver.core.is_owner
    driver.close_older()
    driver.read()
    driver.commit()
    assert driver.state() is LogState.IDLE and driver.store.log.last_clean_epoch == 2
    assert driver.store.log.totals.record_count == 2


def test_the_end_of_the_log_waits_as_well() -> None:
    driver = go_early()
    driver.core.finish(Ending.END, 0)
    driver.append(1)
    assert driver.take(fx.SendAdd) == [], "the log is about to end"
    wakeup_us = driver.core.wakeup_at_us(driver.now_us)
    assert wakeup_us is not None and wakeup_us > driver.now_us, "a timer that never rests"
    driver.close_older()
    driver.read()
    driver.commit()
    assert driver.state() is LogState.IDLE and driver.store.log.is_ended


def test_an_early_log_whose_configuration_changes_sends_nothing_more_ahead() -> None:
    driver = go_early()
    assert driver.core.view is not None
    config: LogConfig = driver.core.view.log.config.model_copy(update={"early_append": False})
    driver.core.on_config(config, 99, 0)
    driver.append(1)
    assert driver.take(fx.SendAdd) == []


def test_a_log_without_early_append_writes_no_bound() -> None:
    driver = EarlyDriver(make_store(is_early=False))
    driver.claim()
    driver.seal("b0", "b1")
    assert driver.store.segments[Epoch(1)][0].bound is None and driver.take(fx.Commit) == []
    assert len(driver.take(fx.SendRecoveryRead)) == 1


def test_another_s_bound_that_comes_while_the_end_is_written_lowers_the_end() -> None:
    """What lies above it may have been sent after a newer epoch had acknowledged."""
    driver = EarlyDriver(make_store(is_early=False))
    driver.claim()
    for seal in driver.take(fx.SendSeal):
        driver.core.on_seal(seal.member, seal.epoch, OK, NOTHING, EntryId(0), 0)
    find_entry(driver, 0)
    (close,) = driver.take(fx.Commit)
    segment, version = driver.store.segments[Epoch(1)]
    bounded = segment.bounded(NOTHING, "theirs")
    assert driver.store.commit((fx.SetSegment(bounded, version),), OTHER)
    assert not driver.store.commit(close.writes, ME)
    driver.core.on_commit(close.token, CommitOutcome.CONFLICT, 0)
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    driver.commit()
    assert driver.store.segments[Epoch(1)][0].last_entry == NOTHING


def find_entry(driver: EarlyDriver, entry: int) -> None:
    """One bookie holds the entry; it is written back, and nothing follows it."""
    stored = fx.StoredEntry(b"late", Totals(1, 4))
    for read in driver.take(fx.SendRecoveryRead):
        assert read.entry == entry
        driver.core.on_read(read.member, Epoch(1), read.entry, OK, stored, 0)
    for add in driver.take(fx.SendAdd):
        driver.core.on_add(add.member, Epoch(1), add.entry, OK, 0)
    while reads := driver.take(fx.SendRecoveryRead):
        for read in reads:
            driver.core.on_read(read.member, Epoch(1), read.entry, BookieStatus.NO_ENTRY, None, 0)


# --- A sealed owner without a metadata store -----------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
def test_a_sealed_owner_without_the_metadata_store_gives_what_was_never_sent_back(
    is_known: bool,
) -> None:
    driver = Driver()
    driver.activate()
    for append_id in range(1, 6):
        driver.append(append_id)
        driver.core.pump(0)
    driver.context.is_metadata_reachable = not is_known
    driver.store_all(BookieStatus.SEALED, only=("b0",))
    if not is_known:
        driver.pass_time(RETRY_DELAY_US)
        driver.read(fails=True)
    assert codes(driver) == [(i, "append_uncertain") for i in range(1, 5)]
    assert [one.append_id for one in driver.take(fx.Yield)] == [5]
    assert driver.state() is LogState.IDLE and driver.core.loss_count == 1


def test_a_takeover_whose_read_fails_goes_on_trying() -> None:
    driver = Driver()
    driver.core.take_over(0)
    driver.append(1)
    driver.read(fails=True)
    assert driver.state() is LogState.READING and driver.take(fx.Yield) == []
