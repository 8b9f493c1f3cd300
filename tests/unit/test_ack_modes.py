"""What an owner makes of a wish for another `ack_mode`, and what it refuses meanwhile (R29).

The core of one log's sequencer, with bookies and a store whose answers are given by hand.
Source: docs/protocol/write.md "Acknowledged out of order", docs/protocol/errors.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import make_ports
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.exactly_once.modes import Modes
from duramen.core.sequencer.exactly_once.stamps import SetToken, Stamp
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.proposals import choose_ack_mode
from duramen.core.sequencer.takeover.stalled_appends import StalledAppends
from duramen.core.sequencer.transmit import PlacedAppend, QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, epoch_of, lsn_of
from duramen.units import SECOND
from tests.unit.core_fakes import LOG_ID, FakeBookie, FakeStore
from tests.unit.exact_log import Log
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import OK, OTHER, Driver

LATE = "out_of_order"
EXPIRY = "60s"


def config_of(ack_mode: str, *, min_racks: int = 1) -> Any:
    return parse_log_config({
        "ack_mode": ack_mode, "replication": {"min_racks": min_racks},
        "producers": {"expire_after": EXPIRY},
    })  # fmt: skip


def open_log(ack_mode: str) -> Log:
    driver = Driver(FakeStore(LogNode(LOG_ID, "ns", "log", config_of(ack_mode))))
    driver.context.candidates = driver.context.candidates[:3]
    driver.activate()
    return Log(driver)


def modes_of(log: Log) -> list[str]:
    return [segment.ack_mode for segment, _ in log.driver.store.segments.values()]


def wish(log: Log, ack_mode: str) -> None:
    """Somebody stores the configuration and tells the owner."""
    store = log.driver.store
    version = store.log.config_version + 1
    store.log = replace(store.log, config=config_of(ack_mode), config_version=version)
    store.log_version += 1
    log.driver.core.on_config(store.log.config, version, log.driver.now_us)
    log.driver.core.validate()


def roll(log: Log) -> None:
    """What the owner wants closed is closed."""
    log.store()
    log.driver.read()
    log.driver.commit()
    assert log.driver.state() is LogState.ACTIVE


def set_token(log: Log, token: str) -> int:
    log.count += 1
    append = QueuedAppend(
        log.count, b"token", 0, None, 0, log.driver.now_us + SECOND, command=SetToken(token)
    )
    log.driver.core.append(append, log.driver.now_us)
    log.driver.core.pump(log.driver.now_us)
    return log.count


# --- What the mode of an epoch refuses -----------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "field"),
    [
        ({"stamp": Stamp("p", 0, 0)}, "producer"),
        ({"match_seq_num": 0}, "match_seq_num"),
        ({"min_txid": 1, "max_txid": 1}, "txid"),
        ({"fencing_token": "a"}, "fencing_token"),
        ({"fencing_token": ""}, "fencing_token"),
    ],
)
def test_an_out_of_order_log_refuses_what_needs_order(wants: dict[str, Any], field: str) -> None:
    log = open_log(LATE)
    number, plain = log.append(**wants), log.append()
    (fail,) = log.driver.take(fx.Fail)
    assert (fail.append_id, fail.code, fail.field) == (number, "needs_ordered", field)
    assert "change the log's ack_mode" in fail.detail, "the way out"
    log.store()
    assert [one for one, _, _ in log.done()] == [plain]


def test_a_token_cannot_be_set_on_it_nor_cleared() -> None:
    log = open_log(LATE)
    numbers = [set_token(log, "a"), set_token(log, "")]
    assert log.fails() == [(number, "needs_ordered") for number in numbers]


def test_an_answer_out_of_order_has_its_place_and_number_at_once() -> None:
    log = open_log(LATE)
    log.append()
    (first, *_) = adds = log.driver.take(fx.SendAdd)
    log.append()
    log.driver.store_all()
    (done,) = log.driver.take(fx.Complete)
    assert (done.append_id, done.seq_num, done.start.entry) == (2, 2, 1)
    assert log.driver.core.writer is not None and log.driver.core.writer.lac == -1
    assert first.entry == 0 and len(adds) == 3
    ours = log.driver.core.open_epoch
    assert ours is not None
    for add in adds:
        log.driver.core.on_add(add.member, Epoch(1), add.entry, OK, log.driver.now_us)
    assert (ours.acknowledged[0], ours.acknowledged[1].record_count) == (1, 4), "it never falls"


# --- The way to out_of_order ---------------------------------------------------------------------


def test_a_log_without_producers_changes_in_the_change_that_closes_its_epoch() -> None:
    log = open_log("ordered")
    log.append()
    log.store()
    wish(log, LATE)
    roll(log)
    assert modes_of(log) == ["ordered", LATE]
    assert log.driver.store.log.snapshot_lsn == lsn_of(Epoch(2), EntryId(-1))


def test_while_a_producer_is_there_the_epochs_stay_ordered_and_nobody_new_comes() -> None:
    log = open_log("ordered")
    log.append(Stamp("p", 0, 0))
    log.store()
    wish(log, LATE)
    roll(log)
    assert modes_of(log) == ["ordered", "ordered"], "a changed configuration asks for one roll"
    log.done()
    known, again = log.append(Stamp("p", 0, 1)), log.append(Stamp("p", 0, 0))
    refused = [
        log.append(Stamp("q", 0, 0)), log.append(match_seq_num=2),
        log.append(max_txid=1, min_txid=1), log.append(fencing_token="a"), set_token(log, "a"),
    ]  # fmt: skip
    assert log.fails() == [(number, "mode_changing") for number in refused], "without any proof"
    log.store()
    assert {one for one, _, _ in log.done()} == {known, again}
    log.driver.pass_time(30 * SECOND)
    log.store()
    assert not log.driver.take(fx.ReadMetadata), "no other roll while the producer is there"
    log.driver.pass_time(31 * SECOND)
    roll(log)
    assert modes_of(log) == ["ordered", "ordered", LATE]


def test_a_token_that_goes_makes_way() -> None:
    log = open_log("ordered")
    set_token(log, "a")
    log.store()
    wish(log, LATE)
    roll(log)
    log.done()
    held = log.append(fencing_token="a")
    log.store()
    assert not log.fails() and [one for one, _, _ in log.done()] == [held]
    set_token(log, "")
    log.store()
    log.driver.pass_time(2 * SECOND)
    roll(log)
    assert modes_of(log) == ["ordered", "ordered", LATE]


def test_a_producer_on_its_way_keeps_the_next_epoch_ordered() -> None:
    """It was sent, and is not acknowledged, when the owner learns of the wish."""
    log = open_log("ordered")
    log.append(Stamp("p", 0, 0))
    wish(log, LATE)
    roll(log)
    assert modes_of(log) == ["ordered", "ordered"]


# --- Bookies that do not answer ------------------------------------------------------------------


def answer_all(driver: Driver, dead: set[BookieId]) -> None:
    """Everything under way has its answer: nobody is there where somebody is dead."""
    while True:
        adds, lacs = driver.take(fx.SendAdd), driver.take(fx.SendLac)
        reads, commits = driver.take(fx.ReadMetadata), driver.take(fx.Commit)
        if not (adds or lacs or reads or commits):
            return
        core, now_us = driver.core, driver.now_us
        for add in adds:
            status = BookieStatus.UNREACHABLE if add.member.bookie in dead else OK
            core.on_add(add.member, epoch_of(add.ledger_id), add.entry, status, now_us)
        for lac in lacs:
            status = BookieStatus.UNREACHABLE if lac.member.bookie in dead else OK
            core.on_lac(lac.member, epoch_of(lac.ledger_id), status, now_us, lac.round_id)
        for read in reads:
            core.on_metadata(read.token, driver.store.view(), now_us)
        for commit in commits:
            assert driver.store.commit(commit.writes, driver.name)
            core.on_commit(commit.token, CommitOutcome.APPLIED, now_us)
        core.validate()


@pytest.mark.parametrize("dead_count", [1, 2, 3])
def test_epochs_do_not_follow_each_other_because_of_dead_bookies(dead_count: int) -> None:
    """Each ensemble has one of the third rack, where all are dead, and registered still."""
    driver = Driver(FakeStore(LogNode(LOG_ID, "ns", "log", config_of(LATE, min_racks=2))))
    racks = ("a", "b", *"c" * dead_count)
    members = [FakeBookie(f"b{n}").member for n in range(len(racks))]
    candidates = [Candidate(*one) for one in zip(members, "r" * len(racks), racks, strict=True)]
    driver.context.candidates = candidates
    driver.context.locations = {candidate.member: candidate for candidate in candidates}
    driver.activate()
    log = Log(driver)
    for _ in range(100):
        log.append()
        answer_all(driver, {member.bookie for member in members[2:]})
        driver.pass_time(SECOND // 10)
    assert len(log.done()) == 100
    assert len(modes_of(log)) <= 3, "of ten seconds"


def test_an_epoch_ends_at_once_where_an_entry_has_no_ack_set() -> None:
    """Two of three are dead: nothing can be acknowledged, however new it is."""
    driver = Driver(FakeStore(LogNode(LOG_ID, "ns", "log", config_of(LATE))))
    driver.context.candidates = driver.context.candidates[:3]
    driver.activate()
    Log(driver).append()
    answer_all(driver, {BookieId("b1"), BookieId("b2")})
    assert driver.state() is LogState.DRAINING


# --- The way back --------------------------------------------------------------------------------


def test_the_way_back_is_a_roll_and_who_comes_with_it_waits_for_it() -> None:
    log = open_log(LATE)
    wish(log, "ordered")
    number = log.append(Stamp("p", 0, 0))
    roll(log)
    log.store()
    assert modes_of(log) == [LATE, "ordered"]
    assert not log.fails() and [one for one, _, _ in log.done()] == [number]


def test_while_the_way_back_is_closed_what_needs_order_is_told_to_come_again() -> None:
    append = QueuedAppend(7, b"", 1, None, 0, 0, stamp=Stamp("p", 0, 0))
    fail = Modes(LATE, "ordered").find_refusal(append, has_token=False, knows_producer=False)
    assert fail is not None and (fail.append_id, fail.code) == (7, "mode_changing")
    assert "again" in fail.detail


# --- Whose mode an epoch has at a claim ----------------------------------------------------------


def test_a_takeover_keeps_the_mode_until_it_has_rebuilt() -> None:
    log = open_log("ordered")
    log.append()
    log.store()
    store = log.driver.store
    store.log = replace(store.log, config=config_of(LATE), config_version=1)
    store.log_version += 1
    taker = Driver(store, OTHER)
    taker.core.take_over(taker.now_us)
    taker.read()
    taker.commit()
    assert [segment.ack_mode for segment, _ in store.segments.values()] == ["ordered", "ordered"]


@pytest.mark.parametrize("ack_mode", ["ordered", LATE])
def test_the_epoch_before_decides_while_it_is_not_closed(ack_mode: str) -> None:
    log = open_log(ack_mode)
    view = log.driver.store.view()
    other = "ordered" if ack_mode == LATE else LATE
    wished = replace(view, log=replace(view.log, config=config_of(other)))
    assert choose_ack_mode(wished) == ack_mode


def test_without_an_epoch_before_what_the_log_node_knows_decides() -> None:
    log = replace(make_log(), config=config_of(LATE))
    view = fx.LogView(log, 0, (), None)
    assert log.is_stateless and choose_ack_mode(view) == LATE
    later = replace(log, next_epoch=Epoch(3), last_clean_epoch=Epoch(2))
    assert choose_ack_mode(replace(view, log=later)) == "ordered", "who knows what it left behind?"
    known = replace(later, snapshot_lsn=lsn_of(Epoch(3), EntryId(-1)))
    assert choose_ack_mode(replace(view, log=known)) == LATE
    wanted = replace(known, config=config_of("ordered"))
    assert choose_ack_mode(replace(view, log=wanted)) == "ordered"


def test_nothing_is_refused_of_an_ordered_log() -> None:
    append = QueuedAppend(1, b"", 1, 3, 0, 0, min_txid=3, stamp=Stamp("p", 0, 0))
    modes = Modes("ordered", "ordered")
    assert modes.find_refusal(append, has_token=False, knows_producer=False) is None


# --- What became of what was sent, by the closed node --------------------------------------------


def ask_for_fate(segment: Segment | None) -> list[fx.Effect]:
    """The answers to three appends, in entries 0, 1 and 2 of the segment."""
    answers: list[fx.Effect] = []
    ports = make_ports(Driver().context, answers.append)
    stalled = StalledAppends(ports)
    stalled.park(Epoch(1), {
        EntryId(n): [PlacedAppend(QueuedAppend(n, b"x", 2, None, 5, SECOND), 0, 2 * n)]
        for n in range(3)
    })  # fmt: skip
    stalled.ask(Epoch(2))
    (asked,) = answers
    assert isinstance(asked, fx.ReadSegment)
    answers.clear()
    stalled.on_segment(asked.token, segment)
    stalled.validate()
    assert not stalled.held_count, "nothing is appended again"
    return answers


def test_a_striped_segments_node_says_what_was_acknowledged_and_what_is_in_a_hole() -> None:
    (opened, _), *_ = open_log(LATE).driver.store.segments.values()
    closed = opened.marked("m").closed(
        last_entry=EntryId(1), totals=Totals(4), start_seq_num=10, completed_unix_ms=1, nonce="n",
        holes=((EntryId(0), EntryId(0)),),
    )  # fmt: skip
    hole, kept, above = ask_for_fate(closed)
    assert isinstance(hole, fx.Fail) and (hole.append_id, hole.code) == (0, "not_appended")
    assert isinstance(kept, fx.Complete) and (kept.append_id, kept.seq_num) == (1, 12)
    assert isinstance(above, fx.Fail) and (above.append_id, above.code) == (2, "not_appended")


def test_a_node_that_cannot_be_read_leaves_everything_uncertain() -> None:
    answers = ask_for_fate(None)
    assert [answer.code for answer in answers if isinstance(answer, fx.Fail)] == [
        "append_uncertain"
    ] * 3
