"""An owner that takes its own log over, since an entry of its epoch stays incomplete.

Three bookies, of which two are full; then others come. The core is driven with answers of fake
bookies at once. Source: docs/protocol/waves.md "The owner takes its own log over", R28.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, StoredEntry
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId, SequencerId, epoch_of
from duramen.units import MS, SECOND
from duramen.wire.entry import check_entry
from duramen.wire.entry_history import read_history
from tests.unit.core_fakes import LOG_ID, FakeBookie, FakeStore
from tests.unit.core_formatting import encode_plain_entry

OK = BookieStatus.OK
FULL = BookieStatus.READ_ONLY


class StallWorld:
    """One sequencer of a log whose stall is one second, and three bookies."""

    def __init__(self, *, ack_mode: str = "ordered") -> None:
        config = parse_log_config({
            "copysets": "flexible", "ack_mode": ack_mode, "window": {"stall": "1s"},
            "replication": {"node": 2, "rack": 2, "placement": "prefer"},
        })  # fmt: skip
        self.now_us = 0
        self.store = FakeStore(LogNode(LOG_ID, "ns", "log", config))
        self.bookies = [FakeBookie(f"b{i}") for i in range(3)]
        self.full: set[str] = set()
        self.silent: set[str] = set()
        self.is_segment_readable = True
        self.answers: list[fx.Effect] = []
        self.context = SequencerContext(SequencerId("me"), random.Random(7), encode_plain_entry)
        self.survey()
        self.core = LogSequencer(LOG_ID, self.context)
        self.core.take_over(0)
        self.settle()

    def survey(self) -> None:
        """The sequencer sees which bookies there are."""
        self.context.candidates = [bookie.candidate for bookie in self.bookies]
        self.context.locations = {b.member: b.candidate for b in self.bookies}
        self.context.serving = [bookie.serving for bookie in self.bookies]
        self.context.roster = {b.member: b.name not in self.full for b in self.bookies}

    def add_bookies(self) -> None:
        """Two more come."""
        self.bookies += [FakeBookie("b3"), FakeBookie("b4")]
        self.survey()
        self.core.on_bookies_changed(self.now_us)
        self.settle()

    @property
    def kept(self) -> FakeBookie:
        """One of the two that have the first entry."""
        ledger_id = self.store.segments[Epoch(1)][0].ledger_id
        return next(b for b in self.bookies if 0 in b.entries.get(ledger_id, {}))

    def fill_others(self) -> None:
        """The others take nothing new, and have not said so yet."""
        self.full |= {bookie.name for bookie in self.bookies if bookie is not self.kept}

    def lose_second(self) -> None:
        """Nobody has the second entry any more."""
        ledger_id = self.store.segments[Epoch(1)][0].ledger_id
        del self.kept.entries[ledger_id][EntryId(1)]

    def append(self, append_id: int, *, for_us: int = 60 * SECOND) -> None:
        batch = f"append {append_id}".encode()
        append = QueuedAppend(append_id, batch, 2, None, 5, self.now_us + for_us)
        self.core.append(append, self.now_us)
        self.settle()

    def run_until(self, end_us: int) -> None:
        """Let time pass, event by event."""
        while (at_us := self.core.wakeup_at_us(self.now_us)) is not None and at_us < end_us:
            self.now_us = max(at_us, self.now_us + 1 * MS)
            self.core.on_timer(self.now_us)
            self.settle()
        self.now_us = end_us

    def settle(self) -> None:
        """Carry out what the core wants until it wants nothing."""
        for _ in range(1_000):
            self.core.pump(self.now_us)
            self.core.validate()
            effects = self.core.take_effects()
            if not effects:
                return
            for effect in effects:
                self._carry_out(effect)
        raise AssertionError(self.core)

    def take(self) -> dict[int, Any]:
        """The answers of appends since the last time."""
        found = {answer.append_id: answer for answer in self.answers}  # type: ignore[union-attr]
        self.answers.clear()
        return found

    def _find(self, name: str) -> FakeBookie | None:
        return next((b for b in self.bookies if b.name == name and name not in self.silent), None)

    def _carry_out(self, effect: fx.Effect) -> None:
        core, now_us = self.core, self.now_us
        match effect:
            case fx.SendWave(member, ledger_id, entry):
                bookie = self._find(member.bookie)
                status = BookieStatus.UNREACHABLE
                if bookie is not None:
                    is_refused = bookie.name in self.full and not effect.is_recovery
                    status = FULL if is_refused else bookie.add_wave(effect)
                    self.context.nodes.on_answered(member, [status], now_us, now_us)
                core.on_add(member, epoch_of(ledger_id), entry, status, now_us)
            case fx.SendLac(member, ledger_id):
                if (bookie := self._find(member.bookie)) is not None:
                    epoch = epoch_of(ledger_id)
                    core.on_lac(member, epoch, bookie.lac(effect), now_us, effect.round_id)
            case fx.SendSeal(member, _, epoch):
                if (bookie := self._find(member.bookie)) is not None:
                    core.on_seal(member, epoch, OK, *bookie.seal(epoch), now_us)
            case fx.SendDigest(member, ledger_id):
                if (bookie := self._find(member.bookie)) is not None:
                    digest = bookie.digest(effect)
                    core.on_digest(member, epoch_of(ledger_id), OK, digest, now_us)
            case fx.SendRecoveryRead(member, ledger_id, entry):
                if (bookie := self._find(member.bookie)) is not None:
                    body = bookie.entries.get(ledger_id, {}).get(entry)
                    status = BookieStatus.NO_ENTRY if body is None else OK
                    stored = None if body is None else _open(body)
                    core.on_read(member, epoch_of(ledger_id), entry, status, stored, now_us)
            case fx.ReadMetadata(token):
                core.on_metadata(token, self.store.view(), now_us)
            case fx.ReadSegment(token, epoch):
                found = self.store.segments[epoch][0] if self.is_segment_readable else None
                core.on_segment(token, found, now_us)
            case fx.ReadHistory(token, segment, first):
                held = self.kept.entries[segment.ledger_id]
                core.on_history(token, [read_history(held[first], is_header_only=True)], now_us)
            case fx.Commit(token, writes):
                applied = self.store.commit(writes, SequencerId("me"))
                outcome = CommitOutcome.APPLIED if applied else CommitOutcome.CONFLICT
                core.on_commit(token, outcome, now_us)
            case fx.Complete() | fx.Fail() | fx.Yield():
                self.answers.append(effect)
            case _:
                raise AssertionError(effect)


def _open(body: bytes) -> StoredEntry:
    info = check_entry(body)
    return StoredEntry(body, info.totals, info.has_state, info.record_count, zlib.crc32(body))


@pytest.fixture
def world() -> StallWorld:
    """One append is acknowledged; then two of three bookies are full, and one has the next one."""
    world = StallWorld()
    world.append(1)
    assert isinstance(world.take()[1], fx.Complete)
    world.fill_others()
    world.append(2)
    assert not world.take()
    return world


def test_a_stall_waits_while_no_other_nodeset_would_do(world: StallWorld) -> None:
    world.run_until(2_900 * MS)  # within the grace after which appends are told
    assert (world.core.state, world.core.stall_count) == (LogState.ACTIVE, 0)
    assert world.store.log.next_epoch == 2


def test_a_stall_waits_while_the_epoch_could_not_be_closed(world: StallWorld) -> None:
    world.add_bookies()
    roster = world.context.roster
    world.context.roster = {m: takes for m, takes in roster.items() if m.bookie not in world.full}
    world.run_until(2_900 * MS)
    assert world.core.stall_count == 0, "two of its three bookies are away"
    world.context.roster = roster
    world.run_until(5 * SECOND)
    assert world.core.stall_count == 1


def test_what_recovery_found_is_acknowledged_at_its_place(world: StallWorld) -> None:
    world.add_bookies()
    world.run_until(10 * SECOND)
    answers = world.take()
    assert world.core.stall_count == 1
    assert world.core.writer is not None and world.core.writer.segment.epoch == 2
    found = answers[2]
    assert isinstance(found, fx.Complete), found
    assert (found.start.epoch, found.start.entry, found.seq_num) == (1, 1, 2)
    world.append(3)
    assert world.take()[3].seq_num == 4


def test_what_nobody_has_is_appended_again_before_what_waited(world: StallWorld) -> None:
    world.lose_second()
    world.append(3)
    world.add_bookies()
    world.run_until(10 * SECOND)
    answers = world.take()
    places = {n: (a.start.epoch, a.seq_num) for n, a in answers.items()}
    assert places == {2: (2, 2), 3: (2, 4)}
    segment = world.store.segments[Epoch(1)][0]
    assert segment.last_entry == 0, "the first one alone was in the older epoch"


def test_who_was_answered_is_not_appended_again() -> None:
    world = StallWorld()
    world.append(1)
    world.fill_others()
    world.append(2, for_us=4 * SECOND)
    world.lose_second()
    world.add_bookies()
    world.silent |= world.full  # no cover answers: the recovery takes longer than the append has
    world.run_until(5 * SECOND)
    assert (world.core.stall_count, world.take()[2].code) == (1, "append_uncertain")
    world.silent.clear()
    world.run_until(20 * SECOND)
    world.append(3)
    assert {n: a.seq_num for n, a in world.take().items()} == {3: 2}


def test_where_the_node_cannot_be_read_it_is_uncertain(world: StallWorld) -> None:
    world.is_segment_readable = False
    world.add_bookies()
    world.run_until(10 * SECOND)
    assert world.core.stall_count == 1
    assert world.take()[2].code == "append_uncertain"


def test_of_an_out_of_order_log_nothing_is_appended_again() -> None:
    world = StallWorld(ack_mode="out_of_order")
    world.append(1)
    world.fill_others()
    world.append(2)
    world.lose_second()
    world.take()
    world.add_bookies()
    world.run_until(10 * SECOND)
    answer = world.take()[2]
    assert (answer.code, "not appended" in answer.detail) == ("not_appended", True)


def test_who_loses_the_log_meanwhile_tells_that_nobody_knows(world: StallWorld) -> None:
    world.add_bookies()
    world.silent |= world.full  # no cover answers
    world.run_until(5 * SECOND)
    assert world.core.state is LogState.RECOVERING
    world.core.release()
    world.settle()
    assert world.take()[2].code == "append_uncertain"


def test_four_logs_of_a_process_are_taken_over_at_once(world: StallWorld) -> None:
    stalls = world.context.stalls
    for number in range(4):
        assert stalls.enter(LogId(100 + number))
    world.add_bookies()
    world.run_until(2_900 * MS)
    assert world.core.stall_count == 0
    stalls.leave(LogId(100))
    world.run_until(world.now_us + 2 * SECOND)
    assert (world.core.stall_count, LOG_ID in stalls) == (1, False)
