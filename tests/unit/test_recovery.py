"""Recovery of one segment, rule by rule: every answer is given by hand.

Each test names the rule (R3, R12 to R17) and fails when that rule is broken in the core.
`Driver` validates the core's invariants after each event; the metadata is a `FakeStore`, which
refuses illegal changes. Random runs: `test_log_sequencer.py`. Source: docs/protocol/recovery.md
"Recovery of a segment".
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.core.placement import Candidate, PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, SegmentState, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    EntryId,
    Epoch,
    lsn_of,
)
from tests.unit.recovery_driver import ME, OK, TIMEOUT, Driver, member, stored

NO_ENTRY = BookieStatus.NO_ENTRY
UNKNOWN = BookieStatus.UNKNOWN
GONE = BookieStatus.GONE
READ_ONLY = BookieStatus.READ_ONLY
OVERLOADED = BookieStatus.OVERLOADED


def test_an_empty_segment_is_closed_at_nothing() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    assert driver.store.segments[Epoch(1)][0].state is SegmentState.IN_RECOVERY
    assert len(driver.take(fx.SendSeal)) == 3
    driver.seal("b0", "b2")
    driver.answer(NO_ENTRY, 0)
    driver.answer(NO_ENTRY, 0)
    driver.commit()
    assert driver.closed.last_entry == NOTHING and driver.closed.totals == Totals()
    assert driver.store.log.last_clean_epoch == 1 and driver.store.log.is_stateless


@pytest.mark.parametrize("has_state", [False, True])
def test_a_recovery_says_where_no_producer_and_no_token_is(has_state: bool) -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b2", lac=0, highest=0)
    driver.answer(OK, 0, has_state=has_state)
    driver.answer(NO_ENTRY, 1)
    driver.answer(NO_ENTRY, 1)
    driver.commit()
    assert driver.closed.last_entry == 0
    none = lsn_of(Epoch(2), NOTHING)
    assert driver.store.log.snapshot_lsn == (None if has_state else none)


def test_mark_precedes_seal_and_is_left_out_when_it_stands() -> None:
    driver = Driver()
    segment = driver.store.segments[Epoch(1)][0]
    driver.store.segments[Epoch(1)] = (segment.marked("other"), 1)
    driver.start()
    assert driver.take(fx.Commit) == []
    assert len(driver.take(fx.SendSeal)) == 3

    driver = Driver()
    driver.start()
    assert driver.take(fx.SendSeal) == []


def test_r14_the_ensemble_is_the_one_frozen_at_mark() -> None:
    driver = Driver()
    driver.start()
    segment, version = driver.store.segments[Epoch(1)]
    others = tuple(map(member, ("b0", "b1", "b7")))
    changed = segment.with_ensemble(EntryId(0), others, Totals(), "owner")
    assert driver.store.commit((fx.SetSegment(changed, version),), ME)
    driver.commit()
    assert driver.take(fx.SendSeal) == [], "the owner changed the segment first"
    driver.read_metadata()
    driver.commit()
    assert [seal.member.bookie for seal in driver.take(fx.SendSeal)] == ["b0", "b1", "b7"]


@pytest.mark.parametrize(
    ("quorum", "needed"),
    [
        (Quorum(5, 5, 2), ["b0", "b1", "b2", "b3"]),
        (Quorum(5, 5, 4), ["b0", "b1"]),
        (Quorum(3, 3, 3), ["b0"]),
        (Quorum(3, 3, 1), ["b0", "b1", "b2"]),
        (Quorum(4, 2, 2), ["b0", "b2"]),
        (Quorum(5, 3, 2), ["b0", "b1", "b3", "b4"]),
    ],
)
def test_r12_sealing_ends_when_every_ack_set_is_hit(quorum: Quorum, needed: list[str]) -> None:
    driver = Driver(quorum)
    driver.start()
    driver.commit()
    driver.seal(*needed[:-1])
    driver.seal(*needed[:-1])
    assert driver.state() is RecoveryState.SEAL
    driver.core.on_seal(member(needed[-1]), TIMEOUT, NOTHING, NOTHING, 0)
    assert driver.state() is RecoveryState.SEAL
    driver.seal(needed[-1])
    assert driver.state() is RecoveryState.READ


def test_seals_that_are_not_answered_are_asked_again() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.take(fx.SendSeal)
    driver.pass_time()
    assert len(driver.take(fx.SendSeal)) == 3


@pytest.mark.parametrize("status", [GONE, READ_ONLY, OVERLOADED])
def test_r12_a_seal_that_is_not_answered_ok_seals_nothing(status: BookieStatus) -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    for name in ("b0", "b1", "b2"):
        driver.core.on_seal(member(name), status, EntryId(7), EntryId(7), driver.now_us)
    driver.seal("b0")
    assert driver.state() is RecoveryState.SEAL
    driver.take(fx.SendSeal)
    driver.pass_time()
    assert len(driver.take(fx.SendSeal)) == 3
    driver.seal("b1")
    assert driver.state() is RecoveryState.READ
    assert driver.take(fx.SendRecoveryRead)[0].entry == 0, (
        "marks that came with a refusal do not count"
    )


def test_r13_reading_begins_after_the_highest_lac_with_the_totals_of_its_entry() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", lac=3, highest=5)
    driver.seal("b1", lac=4, highest=4)
    driver.answer(UNKNOWN, 4)
    driver.answer(OK, 4)
    assert driver.take(fx.SendAdd) == [], "what is at or below the LAC is there for certain"
    driver.answer(NO_ENTRY, 5)
    driver.answer(NO_ENTRY, 5)
    driver.commit()
    assert driver.closed.last_entry == 4 and driver.closed.totals == Totals(5, 50)


@pytest.mark.parametrize(
    ("states", "is_stateless"),
    [
        ([False], True),
        ([True], False),
        ([False, False], True),
        ([False, True], False),
        ([True, True], False),
    ],
)
def test_a_close_says_whether_its_end_left_anything_to_rebuild(
    states: list[bool], *, is_stateless: bool
) -> None:
    """Entry 3 is at the LAC, entry 4 was found above it; the flag of the last one counts."""
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=3, highest=3 + len(states) - 1)
    driver.answer(OK, 3, has_state=states[0])
    if len(states) == 2:
        driver.answer(OK, 4, has_state=states[1])
        driver.write_back(4)
    for _ in range(2):
        driver.answer(NO_ENTRY, 3 + len(states))
    driver.commit()
    assert driver.closed.last_entry == 2 + len(states)
    log = driver.store.log
    assert log.is_stateless == is_stateless
    assert log.snapshot_lsn == ((2 << 32) - 1 if is_stateless else None)


def test_r13_the_entry_at_the_lac_is_never_given_up() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=0, highest=0)
    for _ in range(3):
        driver.answer(NO_ENTRY, 0)
    assert driver.take(fx.Commit) == [] and driver.state() is RecoveryState.READ


def test_r13_a_lac_above_everything_that_the_cover_has_seen_delays() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=7, highest=6)
    assert driver.state() is RecoveryState.SEAL
    driver.seal("b2", lac=7, highest=7)
    assert driver.state() is RecoveryState.READ


def test_r13_earlier_fragments_are_not_read() -> None:
    before = Totals(10, 100)
    fragments = (
        Fragment(EntryId(0), tuple(map(member, ("b0", "b1", "b2")))),
        Fragment(EntryId(10), tuple(map(member, ("b0", "b1", "b3"))), before),
    )
    driver = Driver(fragments=fragments)
    driver.start()
    driver.commit()
    assert [seal.member.bookie for seal in driver.take(fx.SendSeal)] == ["b0", "b1", "b3"]
    driver.seal("b1", "b3", lac=6, highest=9)
    driver.answer(NO_ENTRY, 10)
    driver.answer(NO_ENTRY, 10)
    driver.commit()
    assert driver.closed.last_entry == 9 and driver.closed.totals == before
    assert driver.closed.fragments == fragments[:1], "R17: it began after the last entry"


def test_r16_what_is_found_is_written_back_to_its_whole_write_set() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=-1, highest=1)
    for entry in (0, 1):
        driver.answer(OK, entry)
        assert {add.lac for add in driver.outbox if isinstance(add, fx.SendAdd)} == {NOTHING}
        assert driver.write_back(entry, "b2") == ["b0", "b1", "b2"]
    owed = driver.take(fx.PersistOwed)
    assert [(one.member.bookie, one.first, one.last) for one in owed] == [
        ("b2", 0, 0), ("b2", 1, 1),
    ]  # fmt: skip
    driver.answer(NO_ENTRY, 2)
    driver.answer(NO_ENTRY, 2)
    driver.commit()
    assert driver.closed.last_entry == 1 and driver.closed.totals == Totals(2, 20)


def test_r16_a_write_back_needs_qa_and_new_ensembles_appear_only_with_the_close() -> None:
    driver = Driver(spare=("b7", "b8"))
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=0)
    driver.answer(OK, 0)
    driver.write_back(0, "b1", "b2")
    assert driver.take(fx.Commit) == [], "kept in memory"
    again = driver.write_back(0)
    assert sorted(again) == ["b7", "b8"]
    asked = {driver.answer(NO_ENTRY, 1), driver.answer(NO_ENTRY, 1)}
    assert asked <= {"b0", "b1", "b2"}, "R14: read from the frozen ensemble"
    driver.commit()
    ensemble = [one.bookie for one in driver.closed.fragments[0].ensemble]
    assert ensemble[0] == "b0" and sorted(ensemble) == ["b0", "b7", "b8"]


def test_r16_without_replacements_the_write_back_is_tried_again() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=0)
    driver.answer(OK, 0)
    driver.write_back(0, "b1", "b2")
    assert driver.take(fx.SendAdd) == []
    driver.pass_time()
    assert driver.write_back(0) == ["b1", "b2"]
    assert driver.state() is RecoveryState.READ


def test_bookies_that_failed_a_write_back_are_not_chosen_in_turns_without_a_pause() -> None:
    """Regression: two dead bookies that were still listed replaced one another for ever."""
    driver = Driver(spare=("b7",))
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=0)
    driver.answer(OK, 0)
    driver.candidates += [Candidate(member(name), "r", name) for name in ("b1", "b2")]
    rounds = 0
    while driver.write_back(0, "b1", "b2", "b7"):
        rounds += 1
        assert rounds < 5
    assert driver.core.wakeup_at_us() is not None


def test_r15_doubt_never_proves_absence() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1")
    driver.answer(NO_ENTRY, 0)
    for status in (UNKNOWN, BookieStatus.WRONG_INCARNATION):
        driver.answer(status, 0)
    assert driver.take(fx.Commit) == [] and driver.take(fx.SendRecoveryRead) == []
    driver.pass_time()
    driver.answer(BookieStatus.GONE, 0)
    driver.answer(NO_ENTRY, 0)
    driver.commit()
    assert driver.closed.last_entry == NOTHING


@pytest.mark.parametrize("status", [GONE, READ_ONLY, OVERLOADED])
def test_r15_a_dropped_full_or_busy_member_never_proves_absence(status: BookieStatus) -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1")
    for _ in range(5):
        for _ in range(3):
            driver.answer(status, 0)
        assert driver.take(fx.Commit) == [] and driver.take(fx.SendRecoveryRead) == []
        driver.pass_time()
    driver.answer(NO_ENTRY, 0)
    driver.answer(status, 0)
    driver.answer(NO_ENTRY, 0)
    driver.commit()
    assert driver.closed.last_entry == NOTHING


@pytest.mark.parametrize("status", [GONE, READ_ONLY, OVERLOADED])
def test_r16_a_member_that_takes_no_write_back_is_replaced(status: BookieStatus) -> None:
    driver = Driver(spare=("b7", "b8"))
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=0)
    driver.answer(OK, 0)
    driver.write_back(0, "b1", "b2", why=status)
    assert sorted(driver.write_back(0)) == ["b7", "b8"]
    assert driver.state() is RecoveryState.READ


@pytest.mark.parametrize(
    ("quorum", "count"),
    [(Quorum(5, 5, 2), 4), (Quorum(3, 3, 2), 2), (Quorum(3, 3, 3), 1), (Quorum(5, 3, 2), 2)],
)
def test_r15_absence_takes_a_cover_of_the_entrys_write_set(quorum: Quorum, count: int) -> None:
    driver = Driver(quorum)
    driver.start()
    driver.commit()
    driver.seal(*(f"b{i}" for i in range(quorum.ensemble_size)))
    for _ in range(count):
        assert driver.take(fx.Commit) == []
        driver.answer(NO_ENTRY, 0)
    driver.commit()
    assert driver.closed.last_entry == NOTHING


def test_an_entry_at_one_member_only_is_found_behind_absences() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", highest=0)
    driver.answer(NO_ENTRY, 0)
    driver.answer(OK, 0)
    assert driver.state() is RecoveryState.WRITE_BACK


def test_another_recoverer_that_closes_first_is_adopted() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1")
    driver.answer(NO_ENTRY, 0)
    driver.answer(NO_ENTRY, 0)
    segment, version = driver.store.segments[Epoch(1)]
    closed = segment.closed(
        last_entry=EntryId(0),
        totals=Totals(1, 10),
        start_seq_num=0,
        completed_unix_ms=1,
        nonce="other",
    )
    log = driver.store.log.with_clean(closed, "other")
    writes = (fx.SetSegment(closed, version), fx.SetLog(log, driver.store.log_version))
    assert driver.store.commit(writes, ME)
    driver.commit()
    driver.read_metadata()
    assert driver.closed.nonce == "other" and driver.take(fx.Commit) == []


def test_r3_a_close_of_unknown_fate_is_read_back() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1")
    driver.answer(NO_ENTRY, 0)
    driver.answer(NO_ENTRY, 0)
    driver.commit(CommitOutcome.UNKNOWN, applies=False)
    driver.read_metadata()
    driver.commit(CommitOutcome.UNKNOWN)
    assert driver.take(fx.Commit) == [] and not driver.core.is_done
    driver.read_metadata()
    assert driver.closed.totals == Totals()


def test_r3_a_close_checks_the_log_node_and_keeps_what_others_changed() -> None:
    driver = Driver()
    driver.start()
    driver.commit()
    driver.seal("b0", "b1")
    driver.answer(NO_ENTRY, 0)
    driver.answer(NO_ENTRY, 0)
    log = driver.store.log.with_new_epoch("claim")
    following = replace(driver.store.segments[Epoch(1)][0], epoch=Epoch(2))
    writes = (fx.SetLog(log, driver.store.log_version), fx.CreateSegment(following))
    assert driver.store.commit(writes, ME)
    driver.commit()
    driver.read_metadata()
    driver.commit()
    assert driver.closed.epoch == 1
    assert driver.store.log.next_epoch == 3, "the claim of epoch 2 is kept"


def test_a_segment_closed_between_the_reads_of_one_view_is_read_again() -> None:
    """Regression: the log node is read first, so a view may hold a segment that is CLOSED."""
    driver = Driver()
    before = driver.store.log, driver.store.log_version
    segment, version = driver.store.segments[Epoch(1)]
    closed = segment.closed(
        last_entry=NOTHING, totals=Totals(), start_seq_num=0, completed_unix_ms=1, nonce="other"
    )
    log = driver.store.log.with_clean(closed, "other")
    writes = (fx.SetSegment(closed, version), fx.SetLog(log, driver.store.log_version))
    assert driver.store.commit(writes, ME)
    driver.core = Recovery(
        closed,
        version + 1,
        *before,
        rule=PlacementRule(),
        ports=driver._ports,
        unix_ms=lambda now_us: now_us,
    )
    driver.core.start(0)
    assert driver.outbox == []
    driver.read_metadata()
    assert driver.core.is_done


# --- out_of_order --------------------------------------------------------------------------------


def test_an_out_of_order_segment_is_scanned_to_the_highest_entry_and_keeps_its_holes() -> None:
    driver = Driver(ack_mode="out_of_order")
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=0, highest=5)
    driver.answer(OK, 0)
    for entry, is_there in ((1, False), (2, False), (3, True), (4, False), (5, True)):
        if is_there:
            driver.answer(OK, entry)
            driver.write_back(entry)
        else:
            driver.answer(NO_ENTRY, entry)
            driver.answer(NO_ENTRY, entry)
    driver.answer(NO_ENTRY, 6)
    driver.answer(NO_ENTRY, 6)
    driver.commit()
    assert driver.closed.last_entry == 5
    assert driver.closed.holes == ((1, 2), (4, 4))
    assert driver.closed.totals == stored(5).totals


def test_absences_behind_the_last_entry_found_are_the_end_and_no_holes() -> None:
    driver = Driver(ack_mode="out_of_order")
    driver.start()
    driver.commit()
    driver.seal("b0", "b1", lac=0, highest=2)
    driver.answer(OK, 0)
    for entry in (1, 2):
        driver.answer(NO_ENTRY, entry)
        driver.answer(NO_ENTRY, entry)
    driver.commit()
    assert driver.closed.last_entry == 0 and driver.closed.holes == ()


def test_a_damaged_bookie_seals_but_does_not_say_where_an_out_of_order_scan_ends() -> None:
    for ack_mode, state in (("ordered", RecoveryState.READ), ("out_of_order", RecoveryState.SEAL)):
        driver = Driver(ack_mode=ack_mode)
        driver.start()
        driver.commit()
        driver.seal("b0")
        driver.core.on_seal(member("b1"), UNKNOWN, NOTHING, NOTHING, driver.now_us)
        assert driver.state() is state
