"""What an append that cannot be stored is told, and when: lost quorums, ZooKeeper, flush policies.

One log's sequencer before bookies that answer when told. Its own time passes, so that "soon" is a
number. Source: duramen.core.sequencer.shortage, docs/protocol/errors.md, R5, R9.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.quorum import Quorum
from duramen.core.segment import SegmentState
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import make_ports
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.own_changes import OwnChanges
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LogId, epoch_of
from duramen.limits import (
    APPEND_TIMEOUT_US,
    PROBE_INTERVAL_US,
    SHORTAGE_GRACE_US,
    TAKEOVER_LOOK_US,
)
from duramen.units import MS, SECOND
from tests.unit.core_fakes import FakeStore
from tests.unit.exact_log import Log
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import OTHER, Driver, codes
from tests.unit.writer_driver import Driver as WriterDriver
from tests.unit.writer_driver import member

TICK_US = 100 * MS
LOOK_US = TAKEOVER_LOOK_US + PROBE_INTERVAL_US
"""A look at the nodes comes so long after the one before, at most."""
TIMEOUT = BookieStatus.TIMEOUT
NOT_ENOUGH, UNCERTAIN = "not_enough_bookies", "append_uncertain"


class Shorted(Log):
    """A log whose bookies answer as long as they are up, and time out otherwise."""

    def __init__(self, driver: Driver | None = None) -> None:
        super().__init__(driver)
        self.down: tuple[str, ...] = ()

    def answer(self) -> None:
        """Every bookie answers what it was asked, until none is asked any more."""
        core = self.driver.core
        while adds := self.driver.take(fx.SendAdd):
            for add in adds:
                status = TIMEOUT if add.member.bookie in self.down else BookieStatus.OK
                epoch, now_us = epoch_of(add.ledger_id), self.driver.now_us
                core.on_add(add.member, epoch, add.entry, status, now_us)
        for lac in self.driver.take(fx.SendLac):
            status = TIMEOUT if lac.member.bookie in self.down else BookieStatus.OK
            epoch, now_us = epoch_of(lac.ledger_id), self.driver.now_us
            core.on_lac(lac.member, epoch, status, now_us, lac.round_id)

    def run(self, delay_us: int) -> None:
        """Time passes in the steps in which the core asks to be called."""
        end_us = self.driver.now_us + delay_us
        self.answer()
        while self.driver.now_us < end_us:
            at_us = self.driver.core.wakeup_at_us(self.driver.now_us)
            step_us = min(end_us, end_us if at_us is None else at_us) - self.driver.now_us
            self.driver.pass_time(max(step_us, 1))
            self.answer()


def sent_data(driver: Driver) -> list[EntryId]:
    return [add.entry for add in driver.take(fx.SendAdd)]


# --- A lost quorum -------------------------------------------------------------------------------


def test_a_lost_quorum_is_told_soon_after_it_is_known_and_not_when_the_time_is_over() -> None:
    log = Shorted()
    log.down = ("b1", "b2")
    sent = log.append()
    log.answer()
    queued = log.append(Stamp("p", 0, 0))
    log.run(SHORTAGE_GRACE_US - PROBE_INTERVAL_US)
    assert log.fails() == [], "a process that restarts is back by then"
    log.run(PROBE_INTERVAL_US + TICK_US)
    assert log.driver.now_us < APPEND_TIMEOUT_US / 3
    fails = log.driver.take(fx.Fail)
    told = {fail.append_id: fail.code for fail in fails}
    assert told == {sent: UNCERTAIN, queued: NOT_ENOUGH}
    assert all("of the 3 bookies of the ensemble do not answer" in fail.detail for fail in fails)
    # Who comes now is told at the next look, without another grace.
    late = log.append()
    log.run(TICK_US)
    assert log.fails() == [(late, NOT_ENOUGH)]


def test_what_is_never_sent_is_certainly_not_stored() -> None:
    """Behind a known loss nothing is sent to the members that are left: it would be uncertain."""
    log = Shorted()
    log.down = ("b1", "b2")
    log.append()
    log.answer()
    late = [log.append() for _ in range(6)]
    assert 0 not in sent_data(log.driver) and log.driver.core.writer is not None
    assert log.driver.core.writer.lap == 0
    log.run(SHORTAGE_GRACE_US + TICK_US)
    assert [fail for fail in log.fails() if fail[0] in late] == [(one, NOT_ENOUGH) for one in late]


@pytest.mark.parametrize("is_sent", [True, False])
def test_bookies_that_come_back_within_the_grace_cost_nothing(is_sent: bool) -> None:
    log = Shorted()
    log.down = ("b1", "b2")
    if not is_sent:
        log.append()
        log.answer()
    log.append()
    log.run(SHORTAGE_GRACE_US - PROBE_INTERVAL_US)
    log.down = ()
    log.run(PROBE_INTERVAL_US)
    assert log.fails() == [] and len(log.done()) == log.count
    # The next loss has a grace of its own.
    log.down = ("b0", "b1")
    log.append()
    log.run(SHORTAGE_GRACE_US - PROBE_INTERVAL_US)
    assert log.fails() == []


def test_after_a_lost_quorum_the_log_goes_on_and_remembers_what_was_uncertain() -> None:
    log = Shorted()
    log.down = ("b1", "b2")
    first = log.append(Stamp("p", 0, 0))
    log.run(SHORTAGE_GRACE_US + TICK_US)
    assert log.fails() == [(first, UNCERTAIN)]
    again = log.append(Stamp("p", 0, 0))
    log.run(TICK_US)
    code = NOT_ENOUGH  # it waits in the queue: it is judged when it could be sent
    assert log.fails() == [(again, code)]
    log.down = ()
    log.run(PROBE_INTERVAL_US)
    last = log.append(Stamp("p", 0, 0))
    log.run(TICK_US)
    assert log.done() == [(last, 0, True)] and log.fails() == []


def test_what_a_duplicate_and_a_refusal_wait_for_is_told_as_soon() -> None:
    log = Shorted()
    sent, duplicate = log.append(Stamp("p", 0, 0)), log.append(Stamp("p", 0, 0))
    refusal = log.append(match_seq_num=99)
    log.down = ("b1", "b2")
    log.run(SHORTAGE_GRACE_US + TICK_US)
    assert sorted(log.fails()) == [
        (sent, UNCERTAIN), (duplicate, UNCERTAIN), (refusal, NOT_ENOUGH),
    ]  # fmt: skip


def test_one_bookie_less_than_all_is_no_shortage() -> None:
    log = Shorted()
    log.down = ("b2",)
    for _ in range(3):
        log.append()
        log.run(SHORTAGE_GRACE_US)
    assert log.fails() == [] and len(log.done()) == 3


def test_a_quorum_that_is_replaced_is_no_shortage() -> None:
    log = Shorted()
    log.append()
    log.down = ("b1", "b2")
    spare = replace(log.driver.context.candidates[0], rack="r3")
    spares = [replace(spare, member=member(name)) for name in ("b3", "b4")]
    log.driver.context.candidates = [*log.driver.context.candidates, *spares]
    log.answer()
    while log.driver.core.is_changing:
        log.driver.commit()
        log.answer()
    log.run(SHORTAGE_GRACE_US + TICK_US)
    assert log.fails() == [] and len(log.done()) == 1


def test_a_log_that_cannot_be_placed_is_told_as_soon_and_by_that_word_only_while_it_is_so() -> None:
    driver = Driver()
    every = driver.context.candidates
    driver.context.candidates = every[:2]
    driver.core.take_over(0)
    driver.append(1)
    fails: list[fx.Fail] = []
    while not fails:
        for asked in driver.take(fx.ReadMetadata):
            driver.core.on_metadata(asked.token, driver.store.view(), driver.now_us)
        driver.pass_time(TICK_US)
        fails = driver.take(fx.Fail)
    assert SHORTAGE_GRACE_US <= driver.now_us <= SHORTAGE_GRACE_US + 2 * TICK_US
    assert [(fail.append_id, fail.code) for fail in fails] == [(1, NOT_ENOUGH)]
    assert "no ensemble can be placed" in fails[0].detail
    # Now it can be placed, and something else holds it up.
    driver.context.candidates = every
    driver.core.on_bookies_changed(driver.now_us)
    driver.read()
    driver.append(2)
    assert driver.state() is LogState.CLAIMING
    driver.pass_time(SHORTAGE_GRACE_US + TICK_US)
    assert codes(driver) == []
    driver.pass_time(APPEND_TIMEOUT_US)
    assert codes(driver) == [(2, "log_unavailable")]


def test_an_embedded_writer_waits_for_as_long_as_it_was_told() -> None:
    driver = Driver()
    driver.context.holds_logs = True
    log = Shorted(driver)
    driver.activate()
    log.down = ("b1", "b2")
    log.append()
    log.append()
    log.run(SHORTAGE_GRACE_US + SECOND)
    assert log.fails() == []


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(4, 2, 2)])
@pytest.mark.parametrize("stored", [0, 1, 2])
def test_an_ack_set_is_lacking_exactly_if_none_is_left_of_those_of_the_next_entry(
    quorum: Quorum, stored: int
) -> None:
    names = [f"b{index}" for index in range(quorum.ensemble_size)]
    for count in range(len(names) + 1):
        for down in itertools.combinations(names, count):
            driver = WriterDriver(quorum=quorum)
            driver.add(stored)
            for entry in range(stored):
                write_set = driver.segment.write_set_of(EntryId(entry))
                driver.ok(entry, *(one.bookie for one in write_set))
            for name in down:
                driver.answer(stored, name, TIMEOUT)
            left = [
                one
                for one in driver.segment.write_set_of(EntryId(stored))
                if one.bookie not in down
            ]
            is_lacking = len(left) < quorum.ack_quorum
            assert driver.writer.lacks_ack_set == is_lacking, (down, quorum)
            assert driver.writer.has_room == (not is_lacking)


# --- What bookies do not tell --------------------------------------------------------------------


def claim_elsewhere(driver: Driver) -> None:
    """Another sequencer opens the next epoch, and no bookie tells the owner."""
    other = Driver(driver.store, OTHER)
    other.core.take_over(0)
    other.read()
    other.commit()


def begin_shortage() -> Shorted:
    """Two of three bookies fall silent, and one append is sent, another waits."""
    log = Shorted()
    log.down = ("b1", "b2")
    log.append()
    log.run(TICK_US)
    log.append()
    return log


def test_an_owner_without_an_ack_set_reads_its_nodes_and_gives_up_what_is_anothers() -> None:
    log = begin_shortage()
    driver = log.driver
    claim_elsewhere(driver)
    log.run(LOOK_US)
    driver.read()
    assert driver.state() is LogState.IDLE
    assert driver.core.reason == "a newer epoch was opened by another sequencer"
    assert sorted(codes(driver)) == [(1, UNCERTAIN), (2, NOT_ENOUGH)]


def test_an_owner_whose_segment_can_neither_go_on_nor_roll_looks_too() -> None:
    """An `out_of_order` segment keeps its ensemble, and ZooKeeper is being worked on."""
    log = make_log()
    config = log.config.model_copy(update={"ack_mode": "out_of_order"})
    driver = Driver(FakeStore(replace(log, config=config)))
    driver.activate()
    driver.context.is_rolling_suspended = True
    short = Shorted(driver)
    short.down = ("b1", "b2")
    short.append()
    claim_elsewhere(driver)
    short.run(LOOK_US)
    driver.read()
    assert driver.state() is LogState.IDLE


def test_an_owner_without_an_ack_set_gives_up_what_another_closed() -> None:
    log = begin_shortage()
    driver = log.driver
    log.run(LOOK_US)
    driver.read(replace(driver.store.view(), segments=()))
    assert driver.state() is LogState.IDLE
    assert driver.core.reason == "the segment was closed by another sequencer"


def test_logs_that_lost_their_bookies_together_do_not_look_together() -> None:
    log = Shorted()
    looks_us = []
    for number in range(200):
        changes = OwnChanges(LogId(number + 1), make_ports(log.driver.context, lambda _: None))
        changes.look_later(0)
        assert changes.retry_at_us is not None
        looks_us.append(changes.retry_at_us)
    assert TAKEOVER_LOOK_US * 3 // 4 <= min(looks_us) <= max(looks_us) <= TAKEOVER_LOOK_US
    tenths = Counter(at_us // TICK_US for at_us in looks_us)
    assert max(tenths.values()) <= 30, "an even spread has 20 in a tenth of a second"


def test_an_owner_without_an_ack_set_is_fenced_by_a_mark() -> None:
    log = begin_shortage()
    driver = log.driver
    log.run(LOOK_US)
    assert driver.core.writer is not None
    segment = driver.core.writer.segment
    marked = replace(segment, state=SegmentState.IN_RECOVERY)
    view = driver.store.view()
    driver.read(replace(view, segments=((marked, 1),)))
    assert driver.state() is LogState.READING and driver.core.reason != ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_shows_nothing_new_changes_nothing_and_is_repeated(fails: bool) -> None:
    log = begin_shortage()
    driver = log.driver
    for _ in range(3):
        log.run(LOOK_US)
        driver.read(fails=fails)
        assert driver.state() is LogState.ACTIVE
    log.down = ()
    log.run(PROBE_INTERVAL_US + TICK_US)
    last = log.append()
    log.run(LOOK_US)
    assert last in [one for one, _, _ in log.done()]
    assert driver.take(fx.ReadMetadata) == [], "nobody is missed any more"


def test_a_close_is_not_disturbed_by_a_look() -> None:
    """A look that is under way when the log rolls is not heard: the close reads for itself."""
    log = begin_shortage()
    driver = log.driver
    log.run(LOOK_US)
    (look,) = driver.take(fx.ReadMetadata)
    log.down = ()
    log.run(PROBE_INTERVAL_US + TICK_US)
    driver.core.request_roll()
    assert driver.state() is LogState.ACTIVE
    log.run(TICK_US)
    assert driver.state() is LogState.CLOSING
    driver.core.on_metadata(look.token, None, driver.now_us)
    assert driver.state() is LogState.CLOSING
    driver.read()
    driver.commit()
    assert driver.state() is LogState.ACTIVE and driver.core.roll_count == 1


# --- The word of what is waited for --------------------------------------------------------------


def wait_for_a_replacement(log: Log) -> None:
    """The change of an ensemble is under way."""
    spare = replace(log.driver.context.candidates[0], rack="r3")
    log.driver.context.candidates = [
        *log.driver.context.candidates, replace(spare, member=member("b3")),
    ]  # fmt: skip
    log.append()
    log.driver.store_all(TIMEOUT, only=("b2",))
    writer = log.driver.core.writer
    assert writer is not None and writer.state is WriterState.CHANGING


def wait_for_an_unknown_replacement(log: Log) -> None:
    """Nobody knows whether it is in force."""
    wait_for_a_replacement(log)
    log.driver.commit(CommitOutcome.UNKNOWN, applies=False)


def wait_for_a_close(log: Log) -> None:
    """The nodes are read before the segment is closed."""
    log.driver.core.request_roll()
    log.driver.core.pump(log.driver.now_us)
    assert log.driver.state() is LogState.CLOSING


def wait_for_slow_bookies(log: Log) -> None:
    """Every bookie is there as far as is known, and none answers: the pipeline is full."""
    for _ in range(4):
        log.append()


@pytest.mark.parametrize(
    ("begin", "code", "word"),
    [
        (wait_for_a_replacement, "metadata_unavailable", "replaced"),
        (wait_for_an_unknown_replacement, "metadata_unavailable", "replaced"),
        (wait_for_a_close, "metadata_unavailable", "closed"),
        (wait_for_slow_bookies, NOT_ENOUGH, "too few bookies answer"),
    ],
)
def test_who_was_never_sent_is_told_what_it_waited_for(
    begin: Callable[[Log], None], code: str, word: str
) -> None:
    log = Log()
    begin(log)
    waiting = log.append()
    log.driver.pass_time(APPEND_TIMEOUT_US)
    [fail] = [fail for fail in log.driver.take(fx.Fail) if fail.append_id == waiting]
    assert fail.code == code and word in fail.detail


# --- A flush policy ------------------------------------------------------------------------------


def make_flushing(**flush: Any) -> Log:
    """A log with a flush policy and bookies that answer."""
    changed = parse_log_config({"replication": {"min_racks": 1}, "flush": flush})
    driver = Driver(FakeStore(replace(make_log(), config=changed)))
    driver.activate()
    return Shorted(driver)


@pytest.mark.parametrize(
    "flush",
    [{"policy": "periodic", "interval": "1s"}, {"policy": "size", "wait_max": "1s"}],
)
@pytest.mark.parametrize("timeout_us", [10 * MS, 500 * MS, 999 * MS, SECOND, 5 * SECOND])
def test_an_append_is_stored_whose_time_is_shorter_than_the_wait_for_company(
    flush: dict[str, str], timeout_us: int
) -> None:
    log = make_flushing(**flush)
    assert isinstance(log, Shorted)
    log.append()
    log.run(TICK_US)
    hasty = log.append(deadline_us=log.driver.now_us + timeout_us)
    log.run(timeout_us - 1)
    assert hasty in [one for one, _, _ in log.done()] and log.fails() == []


def test_an_append_that_nobody_looked_at_in_time_does_not_blame_the_bookies() -> None:
    log = make_flushing(policy="periodic", interval="1s")
    late = log.append(deadline_us=10 * MS)
    log.driver.pass_time(20 * MS)
    assert log.fails() == [(late, "overloaded")]
