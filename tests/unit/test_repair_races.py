"""Repair beside the owner and beside recovery: earlier fragments are repair's, the end is not.

Repair swaps members and proves fragments by compare-and-set while a segment is open or is being
recovered (R21); whoever writes the segment then takes from it what it does not mean to change (R3).
And what an owner may say of its own fragments at the close (R9). Source: docs/protocol/metadata.md
"Rules for every change", docs/protocol/write.md "Ensemble change".
"""

from __future__ import annotations

from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.log_state import LogState
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch
from duramen.limits import CLOSE_OWED_WAIT_US, RETRY_DELAY_US
from tests.unit import recovery_driver, sequencer_driver, writer_driver
from tests.unit.core_fakes import FakeBookie, FakeStore
from tests.unit.recovery_driver import member

NO_ENTRY, OK, TIMEOUT = BookieStatus.NO_ENTRY, BookieStatus.OK, BookieStatus.TIMEOUT
FIRST = EntryId(0)
FRAGMENTS = (
    Fragment(FIRST, tuple(map(member, ("b0", "b1", "b2")))),
    Fragment(EntryId(10), tuple(map(member, ("b0", "b1", "b3"))), Totals(10, 100)),
)


def repair(store: FakeStore) -> None:
    """What an auditor does: a verified copy at b9 for the third one, and the fragment proved."""
    segment, version = store.segments[Epoch(1)]
    old = segment.fragments[0].ensemble[2]
    swapped = segment.with_swapped(FIRST, old, old._replace(bookie=member("b9").bookie), "repair")
    store.segments[Epoch(1)] = (swapped.with_proved(FIRST, "repair"), version + 1)


def is_repaired(segment: Segment) -> bool:
    first = segment.fragments[0]
    return first.ensemble[2].bookie == "b9" and first.is_proved


# --- Recovery ------------------------------------------------------------------------------------


def test_r3_recovery_closes_with_the_earlier_fragments_as_repair_left_them() -> None:
    driver = recovery_driver.Driver(fragments=FRAGMENTS)
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=10)
    driver.answer(OK, 10)
    driver.write_back(10)
    repair(driver.store)
    driver.answer(NO_ENTRY, 11)
    driver.answer(NO_ENTRY, 11)
    driver.commit()
    driver.read_metadata()
    driver.commit()
    assert is_repaired(driver.closed) and driver.closed.last_entry == 10
    assert driver.closed.fragments[1] == FRAGMENTS[1], "R9: recovery proves nothing"


def test_r3_recoverys_own_ensembles_go_with_repairs_earlier_ones() -> None:
    driver = recovery_driver.Driver(fragments=FRAGMENTS, spare=("b7", "b8"))
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=10)
    driver.answer(OK, 10)
    driver.write_back(10, "b1", "b3")
    repair(driver.store)
    driver.write_back(10)
    driver.answer(NO_ENTRY, 11)
    driver.answer(NO_ENTRY, 11)
    driver.commit()
    driver.read_metadata()
    driver.commit()
    assert is_repaired(driver.closed)
    last = [m.bookie for m in driver.closed.fragments[1].ensemble]
    assert last[0] == "b0" and sorted(last) == ["b0", "b7", "b8"]
    assert not driver.closed.fragments[1].is_proved


# --- The owner -----------------------------------------------------------------------------------


def with_two_fragments() -> sequencer_driver.Driver:
    """An owner whose first fragment has entry 0, everywhere; its second one begins at entry 1."""
    driver = sequencer_driver.Driver()
    driver.activate()
    driver.append(1)
    assert driver.store_all() == [0, 0, 0][:1]
    driver.context.candidates = [*driver.context.candidates, FakeBookie("b8").candidate]
    driver.append(2)
    driver.store_all(TIMEOUT, only=("b2",))
    driver.commit()
    assert driver.store_all() == [1]
    return driver


def test_r3_an_ensemble_change_keeps_what_repair_changed() -> None:
    driver = with_two_fragments()
    repair(driver.store)
    driver.context.candidates = [*driver.context.candidates, FakeBookie("b7").candidate]
    driver.append(3)
    driver.store_all(TIMEOUT, only=("b1",))
    driver.commit()
    driver.read()
    driver.commit()
    segment = driver.store.segments[Epoch(1)][0]
    assert is_repaired(segment) and len(segment.fragments) == 3


def test_r3_an_owner_closes_although_repair_changed_the_segment_since() -> None:
    """Regression: the other nonce was taken for another owner, and the log was given up."""
    driver = with_two_fragments()
    driver.core.request_roll()
    repair(driver.store)
    driver.read()
    driver.commit()
    segment = driver.store.segments[Epoch(1)][0]
    assert driver.state() is LogState.ACTIVE and segment.is_closed and is_repaired(segment)
    assert driver.store.segments[Epoch(2)][0].last_fragment.ensemble


def test_r3_a_close_that_repair_came_before_is_tried_again() -> None:
    driver = with_two_fragments()
    driver.core.request_roll()
    driver.read()
    repair(driver.store)
    driver.commit()
    driver.pass_time(RETRY_DELAY_US)
    driver.read()
    driver.commit()
    segment = driver.store.segments[Epoch(1)][0]
    assert driver.state() is LogState.ACTIVE and segment.is_closed and is_repaired(segment)


def test_a_segment_that_is_being_recovered_is_lost_to_its_owner() -> None:
    driver = with_two_fragments()
    driver.core.request_roll()
    segment, version = driver.store.segments[Epoch(1)]
    driver.store.segments[Epoch(1)] = (segment.marked("zombie"), version + 1)
    driver.read()
    assert driver.state() is LogState.IDLE and driver.take(fx.Commit) == []


# --- Proved --------------------------------------------------------------------------------------


def proved(driver: sequencer_driver.Driver) -> list[bool]:
    return [fragment.is_proved for fragment in driver.store.segments[Epoch(1)][0].fragments]


def close(driver: sequencer_driver.Driver) -> None:
    driver.core.request_roll()
    driver.take(fx.SendAdd)
    driver.pass_time(CLOSE_OWED_WAIT_US)
    driver.read()
    driver.commit()


def test_r9_an_owner_proves_what_every_member_acknowledged() -> None:
    driver = with_two_fragments()
    close(driver)
    assert proved(driver) == [True, True]


def test_r9_a_fragment_with_a_copy_left_to_repair_is_not_proved() -> None:
    driver = sequencer_driver.Driver()
    driver.activate()
    driver.append(1)
    driver.store_all(only=("b0", "b1"))
    close(driver)
    assert driver.take(fx.PersistOwed) and proved(driver) == [False]


def test_r9_a_replaced_member_leaves_its_older_fragment_unproved() -> None:
    driver = writer_driver.Driver("b3")
    driver.add(2)
    driver.ok(0, "b0", "b1")
    driver.answer(1, "b2", TIMEOUT)
    token, _ = driver.proposed()
    driver.outcome(token, CommitOutcome.APPLIED)
    driver.ok(1, "b0", "b1", "b3")
    assert driver.writer.list_proved() == [1], "b2 is owed entry 0"
    driver.writer.persist_owed()
    for owed in driver.take(fx.PersistOwed):
        driver.writer.on_owed_persisted(owed)
    assert not driver.writer.owed and driver.writer.list_proved() == [1], "and stays owed it"


def test_r9_a_copy_that_comes_late_proves_its_fragment_unless_repair_was_told() -> None:
    driver = writer_driver.Driver()
    driver.add(1)
    driver.ok(0, "b0", "b1")
    assert driver.writer.list_proved() == []
    driver.ok(0, "b2")
    assert driver.writer.list_proved() == [0]
    driver.add(1)
    driver.ok(1, "b0", "b1")
    driver.writer.persist_owed()
    driver.ok(1, "b2")
    assert driver.writer.list_proved() == [], "the note is there, the auditor looks and removes it"
